#include "backend/reference/layer_operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "backend/reference/attention.h"
#include "backend/reference/linear.h"
#include "base/error.h"
#include "core/choose_token.h"
#include "mx/formats.h"

namespace moesaic::reference {
namespace {

float value_at(const void* from, ElementType type, int64_t i) {
  switch (type) {
    case ElementType::kF16:
      return mx::decode_f16(static_cast<const uint16_t*>(from)[i]);
    case ElementType::kBF16:
      return mx::decode_bf16(static_cast<const uint16_t*>(from)[i]);
    default:
      return static_cast<const float*>(from)[i];
  }
}
std::vector<float> values_at(const void* from, ElementType type, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_at(from, type, first + i);
  return values;
}
std::vector<float> bf16_row(const void* from, int64_t row, int64_t cols) {
  return values_at(from, ElementType::kBF16, row * cols, cols);
}
void put_bf16(void* to, int64_t i, float x) { static_cast<uint16_t*>(to)[i] = mx::encode_bf16(x); }

// ---- the cache ----

int64_t place_of(const PagedCache& c, int64_t page, int64_t token, int head) {
  return page * c.page_stride + token * c.token_stride + head * c.head_stride;
}
float cached(const PagedCache& c, const void* from, int64_t i) {
  return c.fp8 ? mx::decode_e4m3(static_cast<const uint8_t*>(from)[i])
               : mx::decode_bf16(static_cast<const uint16_t*>(from)[i]);
}
void put_cached(const PagedCache& c, void* to, int64_t i, float x) {
  if (!c.fp8) return put_bf16(to, i, x);
  static_cast<uint8_t*>(to)[i] = mx::encode_e4m3(x);
}

// A sequence's keys and values from `first` to `last` as one page; nothing where a page of them is none of
// the cache's.
Result<std::optional<LayerCache>> gather_cache(const PagedAttentionCall& call, int64_t sequence, int first,
                                               int last) {
  const PagedCache& c = call.cache;
  LayerCache all{.page_tokens = last + 1, .kv_size = c.kv_heads * c.head_dim};
  const size_t bytes = static_cast<size_t>(last + 1) * static_cast<size_t>(all.kv_size) * sizeof(float);
  ASSIGN_OR_RETURN(all.key_memory, Buffer::allocate(bytes));
  ASSIGN_OR_RETURN(all.value_memory, Buffer::allocate(bytes));
  for (int token = first; token <= last; ++token) {
    const int64_t page = call.tables[sequence * call.table_stride + token / c.page_tokens];
    if (page < 0 || page >= c.pages) return std::optional<LayerCache>();
    for (int i = 0; i < all.kv_size; ++i) {
      const int64_t from = place_of(c, page, token % c.page_tokens, i / c.head_dim) + i % c.head_dim;
      const size_t to =
          static_cast<size_t>(token) * static_cast<size_t>(all.kv_size) + static_cast<size_t>(i);
      all.keys()[to] = cached(c, c.k, from), all.values()[to] = cached(c, c.v, from);
    }
  }
  return std::optional(std::move(all));
}

Status attend(const PagedAttentionCall& call, int64_t sequence, int64_t row, int position, bool sound) {
  const int heads = call.heads, dim = call.cache.head_dim, size = heads * dim;
  const int first = call.window > 0 ? std::max(0, position - call.window + 1) : 0;
  std::vector<float> out(static_cast<size_t>(size), std::numeric_limits<float>::quiet_NaN());
  if (sound) {
    ASSIGN_OR_RETURN(const std::optional<LayerCache> cache, gather_cache(call, sequence, first, position));
    const std::vector<int32_t> pages = {0};
    const std::span<const float> sinks(call.sinks, call.sinks != nullptr ? static_cast<size_t>(heads) : 0);
    if (cache)
      attend_row({heads, call.cache.kv_heads, dim, first, position}, bf16_row(call.q, row, size), sinks,
                 *cache, pages, out);
  }
  for (int i = 0; i < size; ++i) put_bf16(call.out, row * size + i, out[static_cast<size_t>(i)]);
  return {};
}

// ---- dense ----

class HostDense final : public DenseOperator {
 public:
  HostDense(const DenseMatrix& m, Buffer weight, std::vector<float> bias)
      : DenseOperator(m.rows, m.cols, kHost), weight_(std::move(weight)), bias_(std::move(bias)) {}

  size_t workspace_bytes(int64_t) const override { return 0; }
  size_t bytes() const override { return weight_.bytes() + bias_.size() * sizeof(float); }
  std::string plan(int64_t) const override { return "reference"; }

 protected:
  Status launch(const DenseCall& call) const override;
  Status launch(const QkvCall& call) const override;

 private:
  std::vector<float> product(std::span<const float> x) const;
  Buffer weight_;  // [rows, cols]
  std::vector<float> bias_;
};

std::vector<float> HostDense::product(std::span<const float> x) const {
  std::vector<float> y(static_cast<size_t>(rows()));
  linear(dense_view(Format::kF32, rows(), cols(), weight_.as<std::byte>()), bias_, x, y);
  return y;
}

Status HostDense::launch(const DenseCall& call) const {
  for (int64_t t = 0; t < call.tokens; ++t) {
    const std::vector<float> y = product(bf16_row(call.x, t, cols()));
    for (int64_t r = 0; r < rows(); ++r) {
      const int64_t at = t * rows() + r;
      float out = y[static_cast<size_t>(r)];
      if (call.residual != nullptr) out += value_at(call.residual, call.out_type, at);
      if (call.out_type == ElementType::kBF16) {
        put_bf16(call.out, at, out);
      } else {
        static_cast<float*>(call.out)[at] = out;
      }
    }
  }
  return {};
}

// Bias and RoPE of a token's Q, K and V: heads [first, first + count) of y are turned.
void turn(const QkvCall& call, int64_t position, std::span<float> y) {
  const int dim = call.cache.head_dim, half = dim / 2;
  for (int i = 0; i < half; ++i) {
    const double c = value_at(call.cos_sin, call.cos_sin_type, position * dim + i),
                 s = value_at(call.cos_sin, call.cos_sin_type, position * dim + half + i);
    for (int head = 0; head < call.heads + call.cache.kv_heads; ++head) {
      float &lo = y[static_cast<size_t>(head * dim + i)], &hi = y[static_cast<size_t>(head * dim + half + i)];
      const double x1 = lo, x2 = hi;
      lo = static_cast<float>(x1 * c - x2 * s), hi = static_cast<float>(x2 * c + x1 * s);
    }
  }
}

void put_row(const QkvCall& call, int64_t token, std::span<const float> y) {
  const PagedCache& c = call.cache;
  const int64_t slot = call.slots[token];
  const int q_size = call.heads * c.head_dim, kv_size = c.kv_heads * c.head_dim;
  for (int i = 0; i < q_size; ++i) put_bf16(call.q, token * q_size + i, y[static_cast<size_t>(i)]);
  for (int i = 0; i < kv_size && slot >= 0; ++i) {
    const int64_t to =
        place_of(c, slot / c.page_tokens, slot % c.page_tokens, i / c.head_dim) + i % c.head_dim;
    put_cached(c, c.k, to, y[static_cast<size_t>(q_size + i)]);
    put_cached(c, c.v, to, y[static_cast<size_t>(q_size + kv_size + i)]);
  }
}

Status HostDense::launch(const QkvCall& call) const {
  const std::vector<float> norm = values_at(call.norm, call.norm_type, 0, cols());
  const int64_t q_size = int64_t{call.heads} * call.cache.head_dim;
  for (int64_t t = 0; t < call.tokens; ++t) {
    const int64_t position = call.positions[t];
    if (position < 0 || position >= call.table_positions ||
        call.slots[t] >= call.cache.pages * call.cache.page_tokens) {
      for (int64_t i = 0; i < q_size; ++i)
        put_bf16(call.q, t * q_size + i, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    std::vector<float> y = product(normed(bf16_row(call.x, t, cols()), norm, call.eps));
    turn(call, position, y);
    put_row(call, t, y);
  }
  return {};
}

// GPUs have no F32 weights either.
Format format_of(ElementType type) {
  constexpr Format kFormats[] = {Format::kBF16, Format::kF16, Format::kBF16};
  return kFormats[static_cast<int>(type)];
}

}  // namespace

Status paged_attention(const PagedAttentionCall& call) {
  const auto bounded = [&](int64_t s) { return std::clamp<int64_t>(call.starts[s], 0, call.rows); };
  for (int64_t s = 0; s < call.sequences; ++s) {
    const int64_t first = bounded(s), rows = bounded(s + 1) - first, length = call.lengths[s];
    const bool sound = length >= rows && length <= call.table_pages * call.cache.page_tokens &&
                       call.starts[s] >= 0 && call.starts[s + 1] <= call.rows;
    for (int64_t i = 0; i < rows; ++i)
      RETURN_IF_ERROR(attend(call, s, first + i, static_cast<int>(length - rows + i), sound));
  }
  return {};
}

Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions& options, const DenseMatrix& m) {
  const Format made = made_of(format_of(m.type), options.format);
  ASSIGN_OR_RETURN(Buffer weight, Buffer::allocate(static_cast<size_t>(m.rows * m.cols) * sizeof(float)));
  for (int64_t r = 0; r < m.rows; ++r) {
    const std::span row(weight.as<float>() + r * m.cols, static_cast<size_t>(m.cols));
    std::ranges::copy(values_at(m.weight, m.type, r * m.row_stride, m.cols), row.begin());
    if (!all_finite(row)) return invalid("dense: the weight's row {} has a value that is not finite", r);
    round_to(made, row);
  }
  std::vector<float> bias;
  if (m.bias != nullptr) bias = values_at(m.bias, m.bias_type, 0, m.rows);
  if (!all_finite(bias)) return invalid("dense: the bias has a value that is not finite");
  return std::unique_ptr<DenseOperator>(std::make_unique<HostDense>(m, std::move(weight), std::move(bias)));
}

}  // namespace moesaic::reference
