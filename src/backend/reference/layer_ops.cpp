#include "backend/reference/layer_ops.h"

#include <algorithm>

#include "mx/formats.h"

namespace moesaic::reference {

Result<LayerCache> make_cache(const LayerShape& shape, int page_tokens, int pages) {
  LayerCache cache{.page_tokens = page_tokens, .kv_size = shape.kv_size()};
  const size_t bytes = static_cast<size_t>(pages) * cache.page_floats() * sizeof(float);
  ASSIGN_OR_RETURN(cache.key_memory, Buffer::allocate(bytes));
  ASSIGN_OR_RETURN(cache.value_memory, Buffer::allocate(bytes));
  return cache;
}

std::vector<float> product(const MatrixView& w, const MatrixView& bias, std::span<const float> x,
                           const Precision& precision) {
  std::vector<float> y(x.size() / static_cast<size_t>(w.cols) * static_cast<size_t>(w.rows));
  dense_linear(w, read_vector(bias), x, y, precision);
  return y;
}

Qkv qkv(Layer& layer, std::span<const LayerRow> rows, std::span<const float> x, const Precision& precision) {
  const LayerWeights& w = layer.weights;
  const auto q_size = static_cast<size_t>(layer.shape.q_size()),
             kv_size = static_cast<size_t>(layer.shape.kv_size());
  Qkv out = {product(w.q, w.q_bias, x, precision), product(w.k, w.k_bias, x, precision),
             product(w.v, w.v_bias, x, precision)};
  if (const LowRank& low = layer.adapter.qkv; !low.empty()) {
    add_low_rank(low, 0, x, out.q);
    add_low_rank(low, layer.shape.q_size(), x, out.k);
    add_low_rank(low, layer.shape.q_size() + layer.shape.kv_size(), x, out.v);
  }
  const auto kept = [&](float v) {
    if (precision.kv == KvFormat::kBf16) return mx::decode_bf16(mx::encode_bf16(v));
    return precision.kv == KvFormat::kFp8 ? mx::decode_e4m3(mx::encode_e4m3(v)) : v;
  };
  const auto append = [&](std::span<const float> from, std::span<float> cache, size_t to) {
    std::ranges::transform(from, cache.subspan(to).begin(), kept);
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto q = std::span(out.q).subspan(r * q_size, q_size),
               k = std::span(out.k).subspan(r * kv_size, kv_size),
               v = std::span(out.v).subspan(r * kv_size, kv_size);
    rotate(layer.rope, rows[r].position, layer.shape.head_dim, q);
    rotate(layer.rope, rows[r].position, layer.shape.head_dim, k);
    const size_t to = layer.cache.offset(rows[r].pages, rows[r].position);
    append(k, layer.cache.keys(), to);
    append(v, layer.cache.values(), to);
  }
  return out;
}

std::vector<float> attend(const Layer& layer, std::span<const LayerRow> rows, std::span<const float> q) {
  const LayerShape& s = layer.shape;
  const std::vector<float> sinks = read_vector(layer.weights.sinks);
  const auto q_size = static_cast<size_t>(s.q_size());
  std::vector<float> out(rows.size() * q_size);
  for (size_t i = 0; i < rows.size(); ++i)
    attend_row({s.heads, s.kv_heads, s.head_dim, rows[i].first(s.window), rows[i].position},
               q.subspan(static_cast<size_t>(rows[i].query) * q_size, q_size), sinks, layer.cache,
               rows[i].pages, std::span(out).subspan(i * q_size, q_size));
  const int64_t group = int64_t{s.heads / s.kv_heads} * s.head_dim, width = layer.weights.o.cols;
  const Range heads = layer.rank.share.kv_heads(width / group);
  return gather(layer.rank, std::move(out), {heads.first * group, heads.count * group}, width);
}

void project(const Layer& layer, std::span<const float> attended, std::span<float> out,
             const Precision& precision) {
  std::vector<float> y = product(layer.weights.o, layer.weights.o_bias, attended, precision);
  if (const LowRank& low = layer.adapter.o; !low.empty()) add_low_rank(low, 0, attended, y);
  const int64_t hidden = layer.shape.hidden;
  y = gather(layer.rank, std::move(y), layer.rank.share.rows(hidden), hidden);
  for (size_t i = 0; i < y.size(); ++i) out[i] += y[i];
}

}  // namespace moesaic::reference
