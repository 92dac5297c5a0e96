#include "model/random_model.h"

#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/file_cache.h"
#include "mx/block.h"

namespace moesaic {
namespace {

// splitmix64's output function (Steele, Lea and Flood 2014).
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A tensor's distribution.
struct Spread {
  double deviation, mean = 0;
};

class Values {
 public:
  Values(uint64_t seed, const std::string& name, Spread spread)
      : start_(mix(seed ^ fnv1a(name))),
        scale_(static_cast<float>(spread.deviation / 147.8)),
        mean_(static_cast<float>(spread.mean)) {}

  float operator[](int64_t i) const {
    const uint64_t h = mix(start_ + static_cast<uint64_t>(i));
    const int sum = static_cast<int>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24 & 255)) - 510;
    return mx::decode_bf16(mx::encode_bf16(static_cast<float>(sum) * scale_ + mean_));
  }

 private:
  uint64_t start_;
  float scale_, mean_;
};

using Bytes = std::vector<std::byte>;

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

class Maker {
 public:
  Maker(const ModelConfig& config, const RandomModelOptions& options)
      : c_(config), options_(options), storage_(std::make_shared<std::vector<Bytes>>()) {}

  ModelWeights make();

 private:
  LayerWeights make_layer(int layer);
  void make_attention(const std::string& prefix, LayerWeights& w);
  void make_experts(const std::string& prefix, LayerWeights& w);
  // [rows, cols] in a dense format, or F32 for what every checkpoint keeps in plain floats.
  MatrixView matrix(Format format, const std::string& name, int64_t rows, int64_t cols, Spread spread);
  MatrixView vector(const std::string& name, int64_t rows, int64_t cols, Spread spread) {
    return matrix(is_plain(options_.dense) ? options_.dense : Format::kF32, name, rows, cols, spread);
  }
  // All experts of one projection, [experts, rows, cols], kMxfp4 or kBF16 (transposed).
  ExpertsView experts(const std::string& name, int64_t rows, int64_t cols, double deviation);
  // Rows first, first + step, ... of each expert, repacked to GGUF's block order where that is asked for.
  ExpertsView take_rows(const ExpertsView& all, int64_t first, int64_t step);
  ExpertsView to_gguf(const ExpertsView& m);
  std::byte* allocate(int64_t bytes) { return storage_->emplace_back(static_cast<size_t>(bytes)).data(); }

  const ModelConfig& c_;
  const RandomModelOptions& options_;
  std::shared_ptr<std::vector<Bytes>> storage_;
};

double inverse_root(int n) { return 1.0 / std::sqrt(static_cast<double>(n)); }

MatrixView Maker::matrix(Format format, const std::string& name, int64_t rows, int64_t cols, Spread spread) {
  const Values values(options_.seed, name, spread);
  const FormatInfo& f = info_of(format);
  std::byte* data = allocate(rows * row_bytes(format, cols));
  std::byte* scales = f.scale_bytes > 0 ? allocate(rows * row_scale_bytes(format, cols)) : nullptr;
  for (int64_t b = 0; b < rows * cols / f.block; ++b) {
    float x[mx::kBlock];
    for (int i = 0; i < f.block; ++i) x[i] = values[b * f.block + i];
    f.encode(x, 1, data + b * f.bytes, scales + b * f.scale_bytes);
  }
  return dense_view(format, rows, cols, data, scales);
}

ExpertsView Maker::experts(const std::string& name, int64_t rows, int64_t cols, double deviation) {
  const Values values(options_.seed, name, {deviation});
  const bool plain = options_.experts == Format::kBF16;
  const int64_t blocks = rows * cols / mx::kBlock, data_stride = plain ? rows * cols * 2 : blocks * 16;
  std::byte* data = allocate(c_.experts * data_stride);
  std::byte* scales = plain ? nullptr : allocate(c_.experts * blocks);
  for (int64_t b = 0; b < c_.experts * blocks; ++b) {
    float x[mx::kBlock];
    uint8_t packed[mx::kPackedBlock];
    for (int i = 0; i < mx::kBlock; ++i) x[i] = values[b * mx::kBlock + i];
    const uint8_t scale = mx::quantize_mxfp4(x, packed);
    if (!plain) {
      std::memcpy(data + b * mx::kPackedBlock, packed, sizeof packed);
      scales[b] = std::byte{scale};
      continue;
    }
    mx::dequantize_mxfp4(packed, scale, x);
    const int64_t e = b / blocks, r = b % blocks * mx::kBlock / cols, c = b * mx::kBlock % cols;
    for (int64_t i = 0; i < mx::kBlock; ++i)
      store(data + e * data_stride + ((c + i) * rows + r) * 2, mx::encode_bf16(x[i]));
  }
  MatrixView first = dense_view(plain ? Format::kBF16 : Format::kMxfp4, rows, cols, data, scales);
  if (plain) first.row_stride = 2, first.col_stride = rows * 2;
  return {first, c_.experts, data_stride, plain ? 0 : blocks};
}

ExpertsView Maker::take_rows(const ExpertsView& all, int64_t first, int64_t step) {
  ExpertsView part = all;
  part.first = slice_rows(all.first, first, all.first.rows / step, step);
  return options_.experts == Format::kMxfp4Gguf ? to_gguf(part) : part;
}

ExpertsView Maker::to_gguf(const ExpertsView& m) {
  const int64_t rows = m.first.rows, cols = m.first.cols, row = row_bytes(Format::kMxfp4Gguf, cols);
  std::byte* data = allocate(m.count * rows * row);
  for (int64_t i = 0; i < m.count * rows; ++i)
    convert_row(m.at(i / rows), i % rows, Format::kMxfp4Gguf, {}, data + i * row, nullptr);
  return {dense_view(Format::kMxfp4Gguf, rows, cols, data), m.count, rows * row, 0};
}

void Maker::make_attention(const std::string& prefix, LayerWeights& w) {
  const std::string p = prefix + "self_attn.";
  const double in = inverse_root(c_.hidden), out = inverse_root(c_.q_size());
  w.q = matrix(options_.dense, p + "q_proj.weight", c_.q_size(), c_.hidden, {0.8 * in});
  w.k = matrix(options_.dense, p + "k_proj.weight", c_.kv_size(), c_.hidden, {0.8 * in});
  w.v = matrix(options_.dense, p + "v_proj.weight", c_.kv_size(), c_.hidden, {in});
  w.o = matrix(options_.dense, p + "o_proj.weight", c_.hidden, c_.q_size(), {out});
  w.q_bias = vector(p + "q_proj.bias", 1, c_.q_size(), {0.25});
  w.k_bias = vector(p + "k_proj.bias", 1, c_.kv_size(), {0.25});
  w.v_bias = vector(p + "v_proj.bias", 1, c_.kv_size(), {0.25});
  w.o_bias = vector(p + "o_proj.bias", 1, c_.hidden, {0.1});
  w.sinks = vector(p + "sinks", 1, c_.heads, {1.0});
}

// Gate and up reach past the clamp at 7 now and then.
void Maker::make_experts(const std::string& prefix, LayerWeights& w) {
  const std::string p = prefix + "mlp.experts.";
  w.router = vector(prefix + "mlp.router.weight", c_.experts, c_.hidden, {2.0 * inverse_root(c_.hidden)});
  w.router_bias = vector(prefix + "mlp.router.bias", 1, c_.experts, {0.25});
  const ExpertsView both =
      experts(p + "gate_up_proj", 2 * c_.intermediate, c_.hidden, 2.5 * inverse_root(c_.hidden));
  w.gate = take_rows(both, 0, 2);
  w.up = take_rows(both, 1, 2);
  w.down = take_rows(
      experts(p + "down_proj", c_.hidden, c_.intermediate, 0.12 * inverse_root(c_.intermediate)), 0, 1);
  const MatrixView bias = vector(p + "gate_up_proj_bias", c_.experts, 2 * c_.intermediate, {0.25});
  w.gate_bias = bias, w.up_bias = bias;
  w.gate_bias.cols = w.up_bias.cols = c_.intermediate;
  w.gate_bias.col_stride = w.up_bias.col_stride = 2 * bias.col_stride;
  w.up_bias.data += bias.col_stride;
  w.down_bias = vector(p + "down_proj_bias", c_.experts, c_.hidden, {0.1});
}

LayerWeights Maker::make_layer(int layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  LayerWeights w;
  w.attn_norm = vector(prefix + "input_layernorm.weight", 1, c_.hidden, {0.25, 1});
  w.mlp_norm = vector(prefix + "post_attention_layernorm.weight", 1, c_.hidden, {0.25, 1});
  make_attention(prefix, w);
  make_experts(prefix, w);
  return w;
}

ModelWeights Maker::make() {
  ModelWeights m;
  m.embed = matrix(options_.dense, "model.embed_tokens.weight", c_.vocab, c_.hidden, {1.5});
  for (int i = 0; i < c_.layers; ++i) m.layers.push_back(make_layer(i));
  m.final_norm = vector("model.norm.weight", 1, c_.hidden, {0.25, 1});
  m.head = matrix(options_.dense, "lm_head.weight", c_.vocab, c_.hidden, {3.0 * inverse_root(c_.hidden)});
  m.storage = storage_;
  return m;
}

}  // namespace

ModelWeights make_random_model(const ModelConfig& config, const RandomModelOptions& options) {
  MOESAIC_CHECK(validate(config).ok());
  return Maker(config, options).make();
}

}  // namespace moesaic
