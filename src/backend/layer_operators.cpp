#include "backend/layer_operators.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr uintptr_t kRowAlignment = 16, kScratchAlignment = 256;
constexpr const char *kAttention = "paged_attention", *kQkv = "norm_qkv_rope";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // rows, sequences, entries of page tables

bool aligned(const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

struct Named {
  const char* name;
  const void* pointer;
};
Status present(const char* op, std::initializer_list<Named> all) {
  for (const Named& one : all) {
    if (one.pointer == nullptr) return invalid("{}: {} is missing", op, one.name);
  }
  return {};
}
Status aligned(const char* op, std::initializer_list<Named> all) {
  for (const Named& one : all) {
    if (!aligned(one.pointer, kRowAlignment)) return invalid("{}: {} must be 16-byte aligned", op, one.name);
  }
  return {};
}

Status check_shape(const char* op, const PagedCache& c, int heads) {
  if (c.page_tokens != 16 && c.page_tokens != 32 && c.page_tokens != 64)
    return error(StatusCode::kUnsupported, "{}: pages of {} tokens; use 16, 32 or 64", op, c.page_tokens);
  if (c.head_dim != 32 && c.head_dim != 64 && c.head_dim != 128)
    return error(StatusCode::kUnsupported, "{}: head_dim {}: 32, 64 and 128 are supported", op, c.head_dim);
  constexpr int kMostGroup = 16;
  if (c.kv_heads < 1 || heads < 1 || heads % c.kv_heads != 0 || heads / c.kv_heads > kMostGroup)
    return error(StatusCode::kUnsupported, "{}: {} heads and {} KV heads: 1 to {} heads share a KV head", op,
                 heads, c.kv_heads, kMostGroup);
  if (c.pages < 1 || c.pages > kMost / c.page_tokens)
    return invalid("{}: a cache of {} pages of {} tokens", op, c.pages, c.page_tokens);
  const int64_t of_row = c.fp8 ? 16 : 8;
  for (const int64_t stride : {c.page_stride, c.token_stride, c.head_stride}) {
    if (stride < c.head_dim || stride % of_row != 0)
      return invalid(
          "{}: the cache's strides are {}, {} and {} values (page, token, head): at least {}, and "
          "multiples of {}",
          op, c.page_stride, c.token_stride, c.head_stride, c.head_dim, of_row);
  }
  return {};
}

Status check_memory(const char* op, const PagedCache& c) {
  RETURN_IF_ERROR(present(op, {{"the cache's k", c.k}, {"the cache's v", c.v}}));
  return aligned(op, {{"the cache's k", c.k}, {"the cache's v", c.v}});
}

}  // namespace

Status check(const Scratch& s, size_t wanted, const char* op) {
  if (s.memory == nullptr || (s.bytes >= wanted && aligned(s.memory, kScratchAlignment))) return {};
  return invalid("{}: a workspace of {} bytes; {} are needed, {}-byte aligned", op, s.bytes, wanted,
                 kScratchAlignment);
}

Status check_sizes(const PagedAttentionCall& c) {
  if (c.rows < 0 || c.sequences < 0 || c.rows > kMost || c.sequences > kMost)
    return invalid("{}: {} rows of {} sequences", kAttention, c.rows, c.sequences);
  if (c.window < 0) return invalid("{}: a window of {} tokens; 0 is none", kAttention, c.window);
  RETURN_IF_ERROR(check_shape(kAttention, c.cache, c.heads));
  if (c.rows == 0 || c.sequences == 0) return {};
  if (c.table_pages < 1 || c.table_stride < c.table_pages || c.table_stride > kMost / c.sequences ||
      c.table_pages > kMost / c.cache.page_tokens)
    return invalid("{}: page tables of {} entries, {} apart, of {} sequences", kAttention, c.table_pages,
                   c.table_stride, c.sequences);
  return {};
}

Status check(const PagedAttentionCall& c) {
  RETURN_IF_ERROR(check_sizes(c));
  RETURN_IF_ERROR(check_memory(kAttention, c.cache));
  if (c.rows == 0 || c.sequences == 0) return {};
  RETURN_IF_ERROR(present(kAttention, {{"q", c.q},
                                       {"out", c.out},
                                       {"starts", c.starts},
                                       {"lengths", c.lengths},
                                       {"the page table", c.tables}}));
  if (c.q == c.out) return invalid("{}: out is q itself", kAttention);
  return aligned(kAttention, {{"q", c.q}, {"out", c.out}});
}

Status check(const DenseOptions& options, const DenseMatrix& m) {
  const Format format = options.format.value_or(Format::kBF16);
  if (format != Format::kBF16 && format != Format::kMxfp8 && format != Format::kMxfp4)
    return error(StatusCode::kUnsupported, "dense: format {}; use bf16, mxfp8 or mxfp4", format_name(format));
  if (m.cols < 32 || m.cols % 32 != 0 || m.cols > 1 << 16 || m.rows < 1 || m.rows > 1 << 24)
    return error(
        StatusCode::kUnsupported,
        "dense: a matrix of {} x {}: up to 16,777,216 rows, and a multiple of 32 up to 65,536 columns",
        m.rows, m.cols);
  RETURN_IF_ERROR(present("dense", {{"the weight", m.weight}}));
  const int64_t of_row = m.type == ElementType::kF32 ? 4 : 8;
  if (!aligned(m.weight, kRowAlignment) || m.row_stride < m.cols || m.row_stride % of_row != 0)
    return invalid("dense: the weight's rows are {} values apart: at least {}, and 16-byte aligned",
                   m.row_stride, m.cols);
  return {};
}

Status DenseOperator::run(const DenseCall& c) const {
  if (c.tokens < 0) return invalid("dense: {} tokens", c.tokens);
  if (c.out_type == ElementType::kF16) return invalid("dense: out is BF16 or F32, not F16");
  if (c.tokens == 0) return {};
  RETURN_IF_ERROR(present("dense", {{"x", c.x}, {"out", c.out}}));
  if (c.x == c.out) return invalid("dense: out is x itself");
  RETURN_IF_ERROR(aligned("dense", {{"x", c.x}, {"out", c.out}, {"residual", c.residual}}));
  RETURN_IF_ERROR(check(c.scratch, workspace_bytes(c.tokens), "dense"));
  return launch(c);
}

Status DenseOperator::run(const QkvCall& c) const {
  if (c.tokens < 0) return invalid("{}: {} tokens", kQkv, c.tokens);
  RETURN_IF_ERROR(check_shape(kQkv, c.cache, c.heads));
  const int64_t wanted = int64_t{c.heads + 2 * c.cache.kv_heads} * c.cache.head_dim;
  if (rows_ != wanted)
    return invalid("{}: the weight has {} rows; {} heads and {} KV heads of {} have {}", kQkv, rows_, c.heads,
                   c.cache.kv_heads, c.cache.head_dim, wanted);
  if (!(c.eps >= 0) || !std::isfinite(c.eps)) return invalid("{}: eps {}", kQkv, c.eps);
  if (c.table_positions < 1) return invalid("{}: cos_sin has {} positions", kQkv, c.table_positions);
  if (c.tokens == 0) return {};
  RETURN_IF_ERROR(check_memory(kQkv, c.cache));
  RETURN_IF_ERROR(present(kQkv, {{"x", c.x},
                                 {"norm", c.norm},
                                 {"positions", c.positions},
                                 {"cos_sin", c.cos_sin},
                                 {"slots", c.slots},
                                 {"q", c.q}}));
  if (c.x == c.q) return invalid("{}: q is x itself", kQkv);
  RETURN_IF_ERROR(aligned(kQkv, {{"x", c.x}, {"q", c.q}}));
  RETURN_IF_ERROR(check(c.scratch, workspace_bytes(c.tokens), kQkv));
  return launch(c);
}

}  // namespace moesaic
