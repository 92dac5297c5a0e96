#include "core/weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "core/tensor_name.h"
#include "mx/block.h"

namespace moesaic {
namespace {

constexpr int kQ8Block = 34, kMxfp4GgufBlock = 17;

constexpr FormatInfo kFormats[] = {
    {Format::kF32, "F32", "", 1, 4, 32},
    {Format::kF16, "F16", "", 1, 2, 16},
    {Format::kBF16, "BF16", "bf16", 1, 2, 16},
    {Format::kQ8_0, "Q8_0", "q8_0", mx::kBlock, kQ8Block, 8.5},
    {Format::kMxfp4, "MXFP4", "mxfp4", mx::kBlock, mx::kPackedBlock, 4.25},
    {Format::kMxfp4Gguf, "MXFP4", "", mx::kBlock, kMxfp4GgufBlock, 4.25},
    {Format::kMxfp8, "MXFP8", "mxfp8", mx::kBlock, mx::kBlock, 8.25},
};
constexpr const FormatInfo& info_of(Format format) { return kFormats[static_cast<size_t>(format)]; }
static_assert(info_of(Format::kMxfp8).format == Format::kMxfp8, "in the order of the enumeration");

template <typename T>
T load_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float read_plain(Format format, const std::byte* p) {
  if (format == Format::kF32) return load_as<float>(p);
  return format == Format::kF16 ? mx::decode_f16(load_as<uint16_t>(p))
                                : mx::decode_bf16(load_as<uint16_t>(p));
}

void read_q8_block(const std::byte* block, float* out) {
  const float scale = mx::decode_f16(load_as<uint16_t>(block));
  for (int i = 0; i < mx::kBlock; ++i)
    out[i] = scale * static_cast<float>(std::to_integer<int8_t>(block[2 + i]));
}

// GGUF's nibble order (j, j + 16) to the canonical one (2j, 2j + 1).
void reorder_gguf_block(const uint8_t* in, uint8_t* out) {
  for (int j = 0; j < 8; ++j) {
    out[j] = static_cast<uint8_t>((in[2 * j] & 15) | ((in[2 * j + 1] & 15) << 4));
    out[j + 8] = static_cast<uint8_t>((in[2 * j] >> 4) | (in[2 * j + 1] & 0xF0));
  }
}

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

Status check_layer(int layer, const LayerWeights& w, const ModelConfig& c) {
  const Shape shapes[] = {
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
  for (const Shape& s : shapes) RETURN_IF_ERROR(check_shape(layer, s));
  RETURN_IF_ERROR(check_experts(layer, "gate", w.gate, c.experts, c.intermediate, c.hidden));
  RETURN_IF_ERROR(check_experts(layer, "up", w.up, c.experts, c.intermediate, c.hidden));
  return check_experts(layer, "down", w.down, c.experts, c.hidden, c.intermediate);
}

double matrix_bytes(const MatrixView& m) {
  return static_cast<double>(m.rows) * static_cast<double>(m.cols) * bits_per_element(m.format) / 8;
}
double matrix_bytes(const LowRank& m) { return matrix_bytes(m.down) + matrix_bytes(m.up); }
double matrix_bytes(const LowRankExperts& m) {
  return static_cast<double>(m.down.count) * matrix_bytes(LowRank{m.down.first, m.up.first});
}

}  // namespace

std::span<const FormatInfo> formats() { return kFormats; }

std::string_view format_name(Format format) { return info_of(format).name; }

bool is_plain(Format format) { return info_of(format).block == 1; }

double bits_per_element(Format format) { return info_of(format).bits; }

int64_t row_bytes(Format format, int64_t cols) {
  const FormatInfo& info = info_of(format);
  return cols / info.block * info.bytes;
}

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
          .scale_stride = cols / mx::kBlock};
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

void read_row(const MatrixView& m, int64_t r, std::span<float> out) {
  const std::byte* row = m.data + r * m.row_stride;
  if (is_plain(m.format)) {
    for (int64_t c = 0; c < m.cols; ++c)
      out[static_cast<size_t>(c)] = read_plain(m.format, row + c * m.col_stride);
    return;
  }
  for (int64_t b = 0; b < m.cols / mx::kBlock; ++b) {
    float* block = out.data() + b * mx::kBlock;
    if (m.format == Format::kQ8_0) {
      read_q8_block(row + b * kQ8Block, block);
    } else if (m.format == Format::kMxfp8) {
      mx::dequantize_mxfp8(reinterpret_cast<const uint8_t*>(row) + b * mx::kBlock,
                           std::to_integer<uint8_t>(m.scales[r * m.scale_stride + b]), block);
    } else if (m.format == Format::kMxfp4) {
      mx::dequantize_mxfp4(reinterpret_cast<const uint8_t*>(row) + b * mx::kPackedBlock,
                           std::to_integer<uint8_t>(m.scales[r * m.scale_stride + b]), block);
    } else {
      const auto* source = reinterpret_cast<const uint8_t*>(row) + b * kMxfp4GgufBlock;
      uint8_t codes[mx::kPackedBlock];
      reorder_gguf_block(source + 1, codes);
      mx::dequantize_mxfp4(codes, source[0], block);
    }
  }
}

void read_mxfp4_row(const MatrixView& m, int64_t r, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  MOESAIC_CHECK(is_mxfp4(m.format));
  const auto* row = reinterpret_cast<const uint8_t*>(m.data + r * m.row_stride);
  const size_t blocks = static_cast<size_t>(m.cols / mx::kBlock);
  if (m.format == Format::kMxfp4) {
    std::memcpy(codes.data(), row, blocks * mx::kPackedBlock);
    std::memcpy(scales.data(), m.scales + r * m.scale_stride, blocks);
    return;
  }
  for (size_t b = 0; b < blocks; ++b) {
    scales[b] = row[b * kMxfp4GgufBlock];
    reorder_gguf_block(row + b * kMxfp4GgufBlock + 1, codes.data() + b * mx::kPackedBlock);
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
