#include "checkpoint/dummy.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <random>
#include <sstream>

#include "base/buffer.h"
#include "base/error.h"
#include "base/strings.h"
#include "mx/block.h"

namespace moesaic {
namespace {

struct Options {
  ModelConfig config;
  Format dense = Format::kBF16;
  double zipf = 0;  // 0: even routing
};

struct Item {
  std::string key, value;
  explicit Item(const std::string& text) {
    const size_t equals = text.find('=');
    key = text.substr(0, equals);
    if (equals != std::string::npos) value = text.substr(equals + 1);
  }
};

Status apply_option(const std::string& item, Options& out) {
  const auto [key, value] = Item(item);
  if (const auto zipf = number_of<double>(value); key == "zipf" && zipf && *zipf >= 0 && *zipf <= 10)
    return out.zipf = *zipf, Status();
  if (key == "dense") {
    for (const FormatInfo& f : formats()) {
      if (!f.option.empty() && value == f.option) return out.dense = f.format, Status();
    }
  }
  const int number = number_of<int>(value).value_or(-1);
  if ((key != "layers" && key != "experts" && key != "vocab") || number < 0)
    return invalid("dummy model: cannot read '{}'; use layers=N, experts=N, vocab=N, zipf=S, dense={}", item,
                   dense_options("|"));
  if (key == "experts") out.config.experts = number;
  if (key == "vocab" && number > out.config.vocab)
    return invalid("dummy model: vocab={} is more than the model's {}", number, out.config.vocab);
  if (key == "vocab") out.config.vocab = number;
  if (key == "layers" && (number < 1 || number > 1024))
    return invalid("dummy model: layers={} is out of range", number);
  if (key == "layers") out.config.layers = number;
  return {};
}

Result<Options> parse(const std::string& text) {
  std::stringstream in(text);
  std::string item;
  std::getline(in, item, ',');
  Options options;
  ASSIGN_OR_RETURN(options.config, published_config(item));
  while (std::getline(in, item, ',')) RETURN_IF_ERROR(apply_option(item, options));
  options.config.sliding.clear();
  for (int i = 0; i < options.config.layers; ++i) options.config.sliding.push_back(i % 2 == 0);
  RETURN_IF_ERROR(validate(options.config));
  return options;
}

// The pools and a counter that spreads the views over them.
struct Pools {
  Buffer codes, scales, dense, dense_scales, floats, ones, router_biases;
  uint64_t next = 0;

  // A byte offset in [0, range), a multiple of step.
  int64_t offset(int64_t range, int64_t step) {
    next = next * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((next >> 20) % static_cast<uint64_t>(range / step)) * step;
  }
};

constexpr int64_t kCodes = 128 << 20, kScales = 8 << 20, kDense = 48 << 20, kFloats = 4 << 20;
constexpr int64_t kRowStep = 32;  // blocks from one overlapping row to the next

// For dense matrices and norms.
Status add_dense(Pools& pools, Format format, int hidden, std::mt19937_64& rng) {
  ASSIGN_OR_RETURN(pools.dense, Buffer::allocate(kDense));
  ASSIGN_OR_RETURN(pools.ones, Buffer::allocate(hidden * sizeof(float)));
  const FormatInfo& f = info_of(format);
  const int64_t blocks = kDense / f.bytes;
  ASSIGN_OR_RETURN(pools.dense_scales, Buffer::allocate(blocks * f.scale_bytes));
  std::normal_distribution<float> normal;
  for (int64_t b = 0; b < blocks; ++b) {
    float x[mx::kBlock];
    for (int i = 0; i < f.block; ++i) x[i] = normal(rng) * 0.02f;
    f.encode(x, 1, pools.dense.as() + b * f.bytes, pools.dense_scales.as() + b * f.scale_bytes);
  }
  for (int i = 0; i < hidden; ++i) pools.ones.as<float>()[i] = 1.0f;
  return {};
}

constexpr float kFloatDeviation = 0.02f;

// An expert is among the chosen with about e to the power of its bias over the spread of the logits, which
// have a deviation of kFloatDeviation times sqrt(hidden): a bias of -S ln(rank) spreads gives 1 / rank^S.
Status add_router_biases(Pools& pools, const Options& options, std::mt19937_64& rng) {
  const ModelConfig& c = options.config;
  if (options.zipf == 0) return {};
  const double spread = kFloatDeviation * std::sqrt(c.hidden) * std::sqrt(6.0) / std::numbers::pi;
  const auto experts = static_cast<size_t>(c.experts);
  ASSIGN_OR_RETURN(pools.router_biases, Buffer::allocate(c.layers * experts * sizeof(float)));
  std::vector<float> biases(experts);
  for (size_t rank = 0; rank < experts; ++rank)
    biases[rank] = static_cast<float>(-options.zipf * spread * std::log(static_cast<double>(rank + 1)));
  for (int layer = 0; layer < c.layers; ++layer) {
    std::ranges::shuffle(biases, rng);
    std::ranges::copy(biases, pools.router_biases.as<float>() + static_cast<size_t>(layer) * experts);
  }
  return {};
}

Result<std::shared_ptr<Pools>> make_pools(const Options& options) {
  auto pools = std::make_shared<Pools>();
  ASSIGN_OR_RETURN(pools->codes, Buffer::allocate(kCodes));
  ASSIGN_OR_RETURN(pools->scales, Buffer::allocate(kScales));
  ASSIGN_OR_RETURN(pools->floats, Buffer::allocate(kFloats));
  std::mt19937_64 rng(7);
  for (int64_t i = 0; i < kCodes / 8; ++i) pools->codes.as<uint64_t>()[i] = rng();
  for (int64_t i = 0; i < kScales; ++i)
    pools->scales.as<uint8_t>()[i] = static_cast<uint8_t>(119 + rng() % 3);
  RETURN_IF_ERROR(add_dense(*pools, options.dense, options.config.hidden, rng));
  RETURN_IF_ERROR(add_router_biases(*pools, options, rng));
  std::normal_distribution<float> normal(0, kFloatDeviation);
  for (int64_t i = 0; i < kFloats / 4; ++i) pools->floats.as<float>()[i] = normal(rng);
  return pools;
}

MatrixView dense_matrix(Pools& p, Format format, int64_t rows, int64_t cols) {
  MatrixView m = dense_view(format, rows, cols, nullptr);
  m.row_stride = row_bytes(format, kRowStep);
  m.data = p.dense.as() +
           p.offset(kDense - rows * m.row_stride - row_bytes(format, cols), row_bytes(format, kRowStep));
  if (m.scale_stride == 0) return m;
  m.scale_stride = 1;
  m.scales =
      p.dense_scales.as() + p.offset(static_cast<int64_t>(p.dense_scales.bytes()) - rows - cols / 32, 1);
  return m;
}

MatrixView floats(Pools& p, int64_t rows, int64_t cols) {
  return dense_view(Format::kF32, rows, cols, p.floats.as() + p.offset(kFloats - rows * cols * 4, 64));
}

ExpertsView experts(Pools& p, int64_t count, int64_t rows, int64_t cols) {
  ExpertsView e{.count = count, .data_stride = 4096 * 5, .scale_stride = 4096};
  const int64_t codes = kCodes - count * e.data_stride - rows * cols / 2,
                scales = kScales - count * e.scale_stride - rows * cols / 32;
  e.first = dense_view(Format::kMxfp4, rows, cols, p.codes.as() + p.offset(codes, 16),
                       p.scales.as() + p.offset(scales, 1));
  return e;
}

MatrixView router_bias(Pools& p, const ModelConfig& c, int layer) {
  if (p.router_biases.bytes() == 0) return floats(p, 1, c.experts);
  return dense_view(Format::kF32, 1, c.experts,
                    p.router_biases.as() + sizeof(float) * static_cast<size_t>(layer * c.experts));
}

LayerWeights make_layer(Pools& p, const Options& o, int layer) {
  const ModelConfig& c = o.config;
  const MatrixView norm = dense_view(Format::kF32, 1, c.hidden, p.ones.as());
  LayerWeights w{.attn_norm = norm};
  w.mlp_norm = norm;
  w.q = dense_matrix(p, o.dense, c.q_size(), c.hidden), w.q_bias = floats(p, 1, c.q_size());
  w.k = dense_matrix(p, o.dense, c.kv_size(), c.hidden), w.k_bias = floats(p, 1, c.kv_size());
  w.v = dense_matrix(p, o.dense, c.kv_size(), c.hidden), w.v_bias = floats(p, 1, c.kv_size());
  w.o = dense_matrix(p, o.dense, c.hidden, c.q_size()), w.o_bias = floats(p, 1, c.hidden);
  w.sinks = floats(p, 1, c.heads);
  w.router = floats(p, c.experts, c.hidden), w.router_bias = router_bias(p, c, layer);
  w.gate = experts(p, c.experts, c.intermediate, c.hidden),
  w.gate_bias = floats(p, c.experts, c.intermediate);
  w.up = experts(p, c.experts, c.intermediate, c.hidden), w.up_bias = floats(p, c.experts, c.intermediate);
  w.down = experts(p, c.experts, c.hidden, c.intermediate), w.down_bias = floats(p, c.experts, c.hidden);
  return w;
}

Status apply_head_option(const std::string& text, Eagle3Config& out) {
  const auto [key, value] = Item(text);
  const int number = number_of<int>(value).value_or(-1);
  if ((key != "intermediate" && key != "draft_vocab") || number < 0)
    return invalid("dummy draft head: cannot read '{}'; use intermediate=N, draft_vocab=N", text);
  (key == "intermediate" ? out.intermediate : out.draft_vocab) = number;
  return {};
}

Result<Eagle3Config> head_config(const std::string& options, const ModelConfig& target) {
  Eagle3Config c{.name = "dummy draft head",
                 .hidden = target.hidden,
                 .intermediate = 17280,
                 .heads = 64,
                 .kv_heads = 8,
                 .head_dim = 64,
                 .vocab = target.vocab,
                 .draft_vocab = std::min(32000, target.vocab),
                 .rope = target.rope,
                 .taps = default_taps(target.layers)};
  for (int& tap : c.taps) tap = std::clamp(tap, 0, target.layers);
  std::stringstream in(options);
  for (std::string item; std::getline(in, item, ',');) RETURN_IF_ERROR(apply_head_option(item, c));
  RETURN_IF_ERROR(validate(c, target));
  const int64_t widest = std::max({c.features(), c.intermediate, c.q_size()});
  if (std::max<int64_t>(c.intermediate, c.draft_vocab) * row_bytes(Format::kBF16, kRowStep) +
          row_bytes(Format::kBF16, widest) >=
      kDense)
    return invalid("dummy draft head: intermediate={}, draft_vocab={} are too large", c.intermediate,
                   c.draft_vocab);
  return c;
}

}  // namespace

Result<Eagle3Head> make_dummy_head(const std::string& options, const ModelConfig& target) {
  ASSIGN_OR_RETURN(const Eagle3Config c, head_config(options, target));
  std::mt19937_64 rng(9);
  const auto pools = std::make_shared<Pools>();
  RETURN_IF_ERROR(add_dense(*pools, Format::kBF16, c.hidden, rng));
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return dense_matrix(*pools, Format::kBF16, rows, cols);
  };
  const MatrixView norm = dense_view(Format::kF32, 1, c.hidden, pools->ones.as());
  Eagle3Head head{.config = c};
  Eagle3Weights& w = head.weights;
  w.fc = matrix(c.hidden, c.features());
  w.embed_norm = w.hidden_norm = w.mlp_norm = w.norm = norm;
  w.q = matrix(c.q_size(), 2 * c.hidden), w.k = matrix(c.kv_size(), 2 * c.hidden);
  w.v = matrix(c.kv_size(), 2 * c.hidden), w.o = matrix(c.hidden, c.q_size());
  w.gate = matrix(c.intermediate, c.hidden), w.up = matrix(c.intermediate, c.hidden);
  w.down = matrix(c.hidden, c.intermediate), w.head = matrix(c.draft_vocab, c.hidden);
  for (int64_t i = 0; i < c.draft_vocab; ++i)
    w.target_ids.push_back(static_cast<int32_t>(i * c.vocab / c.draft_vocab));
  w.storage = pools;
  RETURN_IF_ERROR(validate_shapes(w, c));
  return head;
}

Result<Checkpoint> make_dummy(const std::string& text) {
  ASSIGN_OR_RETURN(const Options options, parse(text));
  if (options.config.experts > 256) return invalid("dummy model: at most 256 experts");
  ASSIGN_OR_RETURN(const auto pools, make_pools(options));
  Checkpoint checkpoint{.config = options.config, .kind = "dummy"};
  checkpoint.config.name = "dummy:" + text;
  ModelWeights& w = checkpoint.weights;
  w.embed = dense_matrix(*pools, options.dense, options.config.vocab, options.config.hidden);
  w.head = dense_matrix(*pools, options.dense, options.config.vocab, options.config.hidden);
  w.final_norm = dense_view(Format::kF32, 1, options.config.hidden, pools->ones.as());
  for (int i = 0; i < options.config.layers; ++i) w.layers.push_back(make_layer(*pools, options, i));
  for (const Buffer* b : {&pools->codes, &pools->scales, &pools->dense, &pools->dense_scales, &pools->floats,
                          &pools->ones, &pools->router_biases}) {
    if (b->bytes() > 0) w.pools.emplace_back(b->as(), b->bytes());
  }
  w.storage = pools;
  RETURN_IF_ERROR(validate(w, options.config));
  return checkpoint;
}

}  // namespace moesaic
