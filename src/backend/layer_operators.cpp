#include "backend/layer_operators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "backend/apart.h"
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
Status aligned(const char* op, std::initializer_list<Named> all, uintptr_t to = kRowAlignment) {
  for (const Named& one : all) {
    if (!aligned(one.pointer, to)) return invalid("{}: {} must be {}-byte aligned", op, one.name, to);
  }
  return {};
}
uintptr_t bytes_of(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

struct Dimension {
  int64_t size, stride;
};
std::array<Dimension, 3> dimensions(const PagedCache& c) {
  return {{{c.pages, c.page_stride}, {c.page_tokens, c.token_stride}, {c.kv_heads, c.head_stride}}};
}
// The memory from K's (or V's) first value to its last. dense: it holds nothing else. folded: rows overlap.
struct Reach {
  int64_t bytes = 0;
  bool dense = true, folded = false;
};
Reach reach(const PagedCache& c) {
  std::array<Dimension, 3> all = dimensions(c);
  std::ranges::sort(all, {}, &Dimension::stride);
  Reach r;
  int64_t values = c.head_dim;
  for (const auto& [size, stride] : all) {
    if (size == 1) continue;
    r.folded |= stride < values, r.dense &= stride == values;
    values += (size - 1) * stride;
  }
  r.bytes = values * (c.fp8 ? 1 : 2);
  return r;
}

Status check_shape(const char* op, const PagedCache& c, int heads) {
  if (c.page_tokens != 16 && c.page_tokens != 32 && c.page_tokens != 64)
    return error(StatusCode::kUnsupported, "{}: pages of {} tokens; use 16, 32 or 64", op, c.page_tokens);
  if (c.head_dim != 32 && c.head_dim != 64 && c.head_dim != 128)
    return error(StatusCode::kUnsupported, "{}: head_dim {}: 32, 64 and 128 are supported", op, c.head_dim);
  constexpr int kMostGroup = 16, kMostKvHeads = 65'535;  // a launch's most rows of CTAs
  if (c.kv_heads < 1 || c.kv_heads > kMostKvHeads || heads < 1 || heads % c.kv_heads != 0 ||
      heads / c.kv_heads > kMostGroup)
    return error(StatusCode::kUnsupported, "{}: {} heads and {} KV heads: 1 to {} heads share a KV head", op,
                 heads, c.kv_heads, kMostGroup);
  if (c.pages < 1 || c.pages > kMost / c.page_tokens)
    return invalid("{}: a cache of {} pages of {} tokens", op, c.pages, c.page_tokens);
  constexpr int64_t kMostValues = int64_t{1} << 60;
  const int64_t of_row = c.fp8 ? 16 : 8;
  for (const auto& [size, stride] : dimensions(c)) {
    if (size > 1 && (stride < c.head_dim || stride % of_row != 0 || stride > kMostValues / size))
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
// `to` is of a call's rows.
Status check_apart_from_cache(const char* op, const Extent& to, const PagedCache& c) {
  const Reach r = reach(c);
  return r.dense ? check_apart(op, to, {{"the cache's k", c.k, r.bytes}, {"the cache's v", c.v, r.bytes}})
                 : Status();
}
// Checks that rows may be written to the cache.
Status check_written(const char* op, const PagedCache& c, const Extent& x) {
  const Reach r = reach(c);
  if (r.folded)
    return invalid("{}: the cache's strides are {}, {} and {} values (page, token, head): its rows overlap",
                   op, c.page_stride, c.token_stride, c.head_stride);
  if (c.k == c.v) return invalid("{}: the cache's k is its v", op);
  if (!r.dense) return {};
  RETURN_IF_ERROR(check_apart(op, {"the cache's k", c.k, r.bytes}, {{"the cache's v", c.v, r.bytes}}));
  return check_apart_from_cache(op, x, c);
}

}  // namespace

Status check(const Scratch& s, size_t wanted, const char* op) {
  if (s.memory == nullptr || (s.bytes >= wanted && aligned(s.memory, kScratchAlignment))) return {};
  return invalid("{}: a workspace of {} bytes; {} are needed, {}-byte aligned", op, s.bytes, wanted,
                 kScratchAlignment);
}

Status check_sizes(const PagedAttentionCall& c) {
  if (c.rows < 0 || c.sequences < 0 || c.rows > kMost || c.sequences > kMost - c.rows)
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
  RETURN_IF_ERROR(aligned(kAttention, {{"q", c.q}, {"out", c.out}}));
  RETURN_IF_ERROR(aligned(
      kAttention,
      {{"starts", c.starts}, {"lengths", c.lengths}, {"the page table", c.tables}, {"sinks", c.sinks}}, 4));
  const int64_t bytes = product_of({c.rows, c.heads, c.cache.head_dim, 2}), sequences = c.sequences;
  const Extent out{"out", c.out, bytes};
  RETURN_IF_ERROR(
      check_apart(kAttention, out,
                  {{"q", c.q, bytes},
                   {"starts", c.starts, (sequences + 1) * 4},
                   {"lengths", c.lengths, sequences * 4},
                   {"the page table", c.tables, ((sequences - 1) * c.table_stride + c.table_pages) * 4},
                   {"sinks", c.sinks, int64_t{c.heads} * 4}}));
  return check_apart_from_cache(kAttention, out, c.cache);
}

Status check(const DenseOptions& options, const DenseMatrix& m) {
  const Format format = options.format.value_or(Format::kBF16);
  const FormatInfo& info = info_of(format);
  if (format != Format::kBF16 && (!info.mx || info.option.empty()))
    return error(StatusCode::kUnsupported, "dense: format {}; use bf16, mxfp8 or mxfp4", format_name(format));
  if (m.cols < 32 || m.cols % 32 != 0 || m.cols > 1 << 16 || m.rows < 1 || m.rows > 1 << 24)
    return error(
        StatusCode::kUnsupported,
        "dense: a matrix of {} x {}: up to 16,777,216 rows, and a multiple of 32 up to 65,536 columns",
        m.rows, m.cols);
  RETURN_IF_ERROR(present("dense", {{"the weight", m.weight}}));
  const int64_t of_row = m.type == ElementType::kF32 ? 4 : 8;
  RETURN_IF_ERROR(aligned("dense", {{"the weight", m.weight}}));
  RETURN_IF_ERROR(aligned("dense", {{"the bias", m.bias}}, bytes_of(m.bias_type)));
  if (m.row_stride < m.cols || m.row_stride % of_row != 0)
    return invalid("dense: the weight's rows are {} values apart: at least {}, and a multiple of {}",
                   m.row_stride, m.cols, of_row);
  return {};
}

Status DenseOperator::run(const DenseCall& c) const {
  if (c.tokens < 0) return invalid("dense: {} tokens", c.tokens);
  if (c.out_type == ElementType::kF16) return invalid("dense: out is BF16 or F32, not F16");
  if (c.tokens == 0) return {};
  RETURN_IF_ERROR(present("dense", {{"x", c.x}, {"out", c.out}}));
  RETURN_IF_ERROR(aligned("dense", {{"x", c.x}, {"out", c.out}, {"residual", c.residual}}));
  const int64_t bytes = product_of({c.tokens, rows_, c.out_type == ElementType::kF32 ? 4 : 2});
  RETURN_IF_ERROR(
      check_apart("dense", {"out", c.out, bytes}, {{"x", c.x, product_of({c.tokens, cols_, 2})}}));
  if (c.residual != c.out)
    RETURN_IF_ERROR(check_apart("dense", {"out", c.out, bytes}, {{"residual", c.residual, bytes}}));
  RETURN_IF_ERROR(check(c.scratch, workspace_bytes(c.tokens), "dense"));
  return launch(c);
}

Status DenseOperator::check_pointers(const QkvCall& c) const {
  RETURN_IF_ERROR(aligned(kQkv, {{"x", c.x}, {"q", c.q}}));
  RETURN_IF_ERROR(aligned(kQkv, {{"positions", c.positions}, {"slots", c.slots}}, 8));
  RETURN_IF_ERROR(aligned(kQkv, {{"norm", c.norm}}, bytes_of(c.norm_type)));
  RETURN_IF_ERROR(aligned(kQkv, {{"cos_sin", c.cos_sin}}, bytes_of(c.cos_sin_type)));
  const auto of_type = [](ElementType type) { return static_cast<int64_t>(bytes_of(type)); };
  const Extent x{"x", c.x, product_of({c.tokens, cols_, 2})},
      q{"q", c.q, product_of({c.tokens, c.heads, c.cache.head_dim, 2})};
  RETURN_IF_ERROR(check_apart(
      kQkv, q,
      {x,
       {"norm", c.norm, cols_ * of_type(c.norm_type)},
       {"positions", c.positions, product_of({c.tokens, 8})},
       {"cos_sin", c.cos_sin, product_of({c.table_positions, c.cache.head_dim, of_type(c.cos_sin_type)})},
       {"slots", c.slots, product_of({c.tokens, 8})}}));
  RETURN_IF_ERROR(check_written(kQkv, c.cache, x));
  return check_apart_from_cache(kQkv, q, c.cache);
}

Status DenseOperator::run(const QkvCall& c) const {
  if (c.tokens < 0) return invalid("{}: {} tokens", kQkv, c.tokens);
  RETURN_IF_ERROR(check_shape(kQkv, c.cache, c.heads));
  const int64_t wanted = (c.heads + int64_t{2} * c.cache.kv_heads) * c.cache.head_dim;
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
  RETURN_IF_ERROR(check_pointers(c));
  RETURN_IF_ERROR(check(c.scratch, workspace_bytes(c.tokens), kQkv));
  return launch(c);
}

}  // namespace moesaic
