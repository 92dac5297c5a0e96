#include "core/weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"
#include "core/tensor_name.h"
#include "mx/block.h"

namespace moesaic {
namespace {

struct Shape {
  const char* name;
  const MatrixView& view;
  int64_t rows, cols;
};

Status check_shape(int layer, const Shape& s) {
  if (s.view.data == nullptr) return invalid("{} is missing", tensor_name(layer, s.name));
  if (s.view.rows == s.rows && s.view.cols == s.cols) return {};
  return invalid("{} is [{}, {}], the config asks for [{}, {}]", tensor_name(layer, s.name), s.view.rows,
                 s.view.cols, s.rows, s.cols);
}

Status check_experts(int layer, const char* name, const ExpertsView& view, int64_t count, int64_t rows,
                     int64_t cols) {
  RETURN_IF_ERROR(check_shape(layer, {name, view.first, rows, cols}));
  if (view.count == count) return {};
  return invalid("{} has {} experts, the config asks for {}", tensor_name(layer, name), view.count, count);
}

// A layer's matrices beside its experts, and the sizes that the config asks for.
std::vector<Shape> shapes_of(const LayerWeights& w, const ModelConfig& c) {
  return {
      {"attn_norm", w.attn_norm, 1, c.hidden},
      {"q", w.q, c.q_size(), c.hidden},
      {"k", w.k, c.kv_size(), c.hidden},
      {"v", w.v, c.kv_size(), c.hidden},
      {"q bias", w.q_bias, 1, c.q_size()},
      {"k bias", w.k_bias, 1, c.kv_size()},
      {"v bias", w.v_bias, 1, c.kv_size()},
      {"o", w.o, c.hidden, c.q_size()},
      {"o bias", w.o_bias, 1, c.hidden},
      {"sinks", w.sinks, 1, c.heads},
      {"mlp_norm", w.mlp_norm, 1, c.hidden},
      {"router", w.router, c.experts, c.hidden},
      {"router bias", w.router_bias, 1, c.experts},
      {"gate bias", w.gate_bias, c.experts, c.intermediate},
      {"up bias", w.up_bias, c.experts, c.intermediate},
      {"down bias", w.down_bias, c.experts, c.hidden},
  };
}

Status check_layer(int layer, const LayerWeights& w, const ModelConfig& c) {
  for (const Shape& s : shapes_of(w, c)) RETURN_IF_ERROR(check_shape(layer, s));
  RETURN_IF_ERROR(check_experts(layer, "gate", w.gate, c.experts, c.intermediate, c.hidden));
  RETURN_IF_ERROR(check_experts(layer, "up", w.up, c.experts, c.intermediate, c.hidden));
  return check_experts(layer, "down", w.down, c.experts, c.hidden, c.intermediate);
}

Status not_finite(const std::string& name, int64_t row) {
  return invalid("{} row {}: NaN or infinity; the checkpoint is damaged", name, row);
}

Status check_finite(int layer, const char* name, const MatrixView& m) {
  for (int64_t r = 0; r < m.rows; ++r)
    if (!row_is_finite(m, r)) return not_finite(tensor_name(layer, name), r);
  return {};
}
Status check_finite(int layer, const char* name, const ExpertsView& experts) {
  for (int64_t e = 0; e < experts.count; ++e) RETURN_IF_ERROR(check_finite(layer, name, experts.at(e)));
  return {};
}
Status check_finite(int layer, const LayerWeights& w) {
  for (const Shape& s : shapes_of(w, {})) RETURN_IF_ERROR(check_finite(layer, s.name, s.view));
  RETURN_IF_ERROR(check_finite(layer, "gate", w.gate));
  RETURN_IF_ERROR(check_finite(layer, "up", w.up));
  return check_finite(layer, "down", w.down);
}

double matrix_bytes(const MatrixView& m) {
  return static_cast<double>(m.rows) * static_cast<double>(m.cols) * bits_per_element(m.format) / 8;
}
double matrix_bytes(const LowRank& m) { return matrix_bytes(m.down) + matrix_bytes(m.up); }
double matrix_bytes(const LowRankExperts& m) {
  return static_cast<double>(m.down.count) * matrix_bytes(LowRank{m.down.first, m.up.first});
}

}  // namespace

MatrixView ExpertsView::at(int64_t expert) const {
  MatrixView m = first;
  m.data += expert * data_stride;
  if (m.scales != nullptr) m.scales += expert * scale_stride;
  return m;
}

MatrixView dense_view(Format format, int64_t rows, int64_t cols, const std::byte* data,
                      const std::byte* scales) {
  return {.format = format,
          .rows = rows,
          .cols = cols,
          .data = data,
          .row_stride = row_bytes(format, cols),
          .col_stride = is_plain(format) ? row_bytes(format, 1) : 0,
          .scales = scales,
          .scale_stride = row_scale_bytes(format, cols)};
}

MatrixView slice_rows(const MatrixView& m, int64_t first, int64_t count, int64_t step) {
  MatrixView s = m;
  s.rows = count;
  s.data += first * m.row_stride;
  s.row_stride *= step;
  if (s.scales != nullptr) s.scales += first * m.scale_stride;
  s.scale_stride *= step;
  return s;
}

StoredBlocks blocks_of(const MatrixView& m, int64_t r) {
  const FormatInfo& f = info_of(m.format);
  MOESAIC_CHECK(f.scale_bytes == 0 || m.scales != nullptr);
  return {.data = m.data + r * m.row_stride,
          .stride = f.block == 1 ? m.col_stride : f.bytes,
          .scales = f.scale_bytes == 0 ? nullptr : m.scales + r * m.scale_stride,
          .count = m.cols / f.block};
}

void read_row(const MatrixView& m, int64_t r, std::span<float> out) {
  info_of(m.format).decode(blocks_of(m, r), out.data());
}

void convert_row(const MatrixView& m, int64_t r, Format format, std::span<float> values, std::byte* data,
                 std::byte* scales) {
  const FormatInfo& f = info_of(format);
  const StoredBlocks row = blocks_of(m, r);
  const bool in_place = row.stride == f.bytes;
  if (m.format == format && in_place) {
    std::memcpy(data, row.data, static_cast<size_t>(row.count * f.bytes));
    if (row.scales != nullptr)
      std::memcpy(scales, row.scales, static_cast<size_t>(row.count * f.scale_bytes));
    return;
  }
  if (!is_mxfp4(m.format) || !is_mxfp4(format)) {
    read_row(m, r, values);
    return f.encode(values.data(), m.cols / f.block, data, scales);
  }
  auto* out = reinterpret_cast<uint8_t*>(data);
  const auto* in = reinterpret_cast<const uint8_t*>(row.data);
  for (int64_t b = 0; b < row.count; ++b, in += row.stride, out += f.bytes) {
    if (format == Format::kMxfp4) {
      scales[b] = std::byte{in[0]};
      to_canonical_order(in + 1, out);
    } else {
      out[0] = std::to_integer<uint8_t>(row.scales[b]);
      to_gguf_order(in, out + 1);
    }
  }
}

bool all_mxfp4(const ModelWeights& weights) {
  return std::ranges::all_of(weights.layers, [](const LayerWeights& w) {
    return is_mxfp4(w.gate.first.format) && is_mxfp4(w.up.first.format) && is_mxfp4(w.down.first.format);
  });
}

Result<ReadableLayer> layer_of(const ModelWeights& weights, int layer) {
  ReadableLayer readable{weights.layers[static_cast<size_t>(layer)], nullptr};
  if (!weights.convert_experts) return readable;
  ASSIGN_OR_RETURN(ConvertedExperts experts, weights.convert_experts(layer));
  readable.weights.gate = experts.gate, readable.weights.up = experts.up,
  readable.weights.down = experts.down;
  readable.storage = std::move(experts.storage);
  return readable;
}

LayerAdapter adapter_of(const ModelWeights& weights, int layer) {
  return weights.adapters.empty() ? LayerAdapter() : weights.adapters[static_cast<size_t>(layer)];
}

Status validate(const ModelWeights& w, const ModelConfig& c) {
  RETURN_IF_ERROR(validate(c));
  RETURN_IF_ERROR(check_shape(kNoLayer, {"embed", w.embed, c.vocab, c.hidden}));
  RETURN_IF_ERROR(check_shape(kNoLayer, {"final_norm", w.final_norm, 1, c.hidden}));
  RETURN_IF_ERROR(check_shape(kNoLayer, {"head", w.head, c.vocab, c.hidden}));
  if (std::ssize(w.layers) != c.layers)
    return invalid("the checkpoint has {} layers, its config says {}", w.layers.size(), c.layers);
  for (int i = 0; i < c.layers; ++i) RETURN_IF_ERROR(check_layer(i, w.layers[static_cast<size_t>(i)], c));
  return {};
}

bool row_is_finite(const MatrixView& m, int64_t r) { return info_of(m.format).finite(blocks_of(m, r)); }

Status check_finite(const MatrixView& m, const std::string& name, ThreadPool& pool) {
  constexpr int64_t kRows = 256;
  std::atomic<int64_t> first{m.rows};
  pool.for_each((m.rows + kRows - 1) / kRows, [&](int64_t chunk, int) {
    for (int64_t r = chunk * kRows; r < std::min(m.rows, (chunk + 1) * kRows); ++r) {
      if (row_is_finite(m, r)) continue;
      for (int64_t known = first; r < known && !first.compare_exchange_weak(known, r);) {
      }
      return;
    }
  });
  return first == m.rows ? Status() : not_finite(name, first);
}

Status check_finite(const ModelWeights& w) {
  RETURN_IF_ERROR(check_finite(kNoLayer, "embed", w.embed));
  RETURN_IF_ERROR(check_finite(kNoLayer, "final_norm", w.final_norm));
  RETURN_IF_ERROR(check_finite(kNoLayer, "head", w.head));
  for (size_t l = 0; l < w.layers.size(); ++l)
    RETURN_IF_ERROR(check_finite(static_cast<int>(l), w.layers[l]));
  return {};
}

StoredBytes stored_bytes(const ModelWeights& weights) {
  StoredBytes b{.head = matrix_bytes(weights.head),
                .embedding = matrix_bytes(weights.embed),
                .rest = matrix_bytes(weights.final_norm)};
  for (const LayerWeights& w : weights.layers) {
    for (const ExpertsView* e : {&w.gate, &w.up, &w.down})
      b.experts += static_cast<double>(e->count) * matrix_bytes(e->first);
    for (const MatrixView* m : {&w.q, &w.k, &w.v, &w.o}) b.projections += matrix_bytes(*m);
    for (const MatrixView* m : {&w.attn_norm, &w.mlp_norm, &w.q_bias, &w.k_bias, &w.v_bias, &w.o_bias,
                                &w.sinks, &w.router, &w.router_bias, &w.gate_bias, &w.up_bias, &w.down_bias})
      b.rest += matrix_bytes(*m);
  }
  for (const LayerAdapter& a : weights.adapters)
    b.adapters += matrix_bytes(a.qkv) + matrix_bytes(a.o) + matrix_bytes(a.gate_up) + matrix_bytes(a.down);
  return b;
}

double bytes_per_token(const ModelWeights& weights, const ModelConfig& config) {
  double bytes = matrix_bytes(weights.head) + row_bytes(weights.embed.format, weights.embed.cols);
  for (const LayerWeights& w : weights.layers) {
    bytes += matrix_bytes(w.q) + matrix_bytes(w.k) + matrix_bytes(w.v) + matrix_bytes(w.o) +
             matrix_bytes(w.router);
    bytes += config.experts_per_token *
             (matrix_bytes(w.gate.first) + matrix_bytes(w.up.first) + matrix_bytes(w.down.first));
  }
  for (const LayerAdapter& a : weights.adapters) {
    const double experts = matrix_bytes(a.gate_up) + matrix_bytes(a.down);
    bytes += matrix_bytes(a.qkv) + matrix_bytes(a.o) + experts * config.experts_per_token / config.experts;
  }
  return bytes;
}

}  // namespace moesaic
