#include "model/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "backend/rounding.h"
#include "base/error.h"
#include "model/random_model.h"
#include "model/sequence_runner.h"

namespace moesaic {
namespace {

// Relative rms of an op's result. F32 against F32 differs only in the order of sums: about 2^-24 *
// sqrt(2880). BF16 activations round by at most 2^-8, 0.17% rms, and again where an op rounds twice. Int8
// activations in blocks of 32 round by amax / (127 * sqrt(12)), amax / rms being 2.3 for a bell and 4 for
// SwiGLU's heavy tails: 0.5 to 0.9% each; the attention of the CPU rounds Q and K so, and scores are
// exponents. The worst row stands at two to three times the average. With FP8 K and V both sides round alike,
// but what BF16 arithmetic has moved over one of E4M3's boundaries differs by 2^-4 of itself.
constexpr double kF32Tolerance = 1e-4, kBf16Tolerance = 1e-2, kInt8Tolerance = 4e-2, kAttendTolerance = 4e-2,
                 kFp8AttendTolerance = 8e-2;
// The projection rounds the output of the integers' attention to MXFP8: noise of s times a value carries
// it over one of E4M3's boundaries with probability 0.8 s / q and moves it by q, the distance of neighbours,
// 0.09 of a value in the mean: sqrt(0.8 * 0.09 * s) rms.
constexpr double kMxOfAttendTolerance = 5.4e-2;
// Experts whose activations a device rounds to E4M3 by a rule that the reference has not: twice 2.6% of a
// value, of gate, up and SwiGLU's result.
constexpr double kFp8ExpertsTolerance = 1e-1;
constexpr double kKlTolerance = 1e-3;
// Devices whose activations are int8 where weights are quantised: 0.55% of noise where BF16 has 0.17%, so ten
// times the variance, and divergence grows as variance.
constexpr double kInt8KlTolerance = 10 * kKlTolerance;
// MXFP8 makes little noise larger. Let q be the distance of E4M3's neighbours, BF16's is q / 16. An error
// uniform in +-q / 32, of variance q^2 / 3072, carries a value over E4M3's boundary with probability 1 / 64,
// on average, and then moves it by q: a variance of q^2 / 64, 48 times as much. Divergence grows as variance.
// That is more than the format itself costs on models/tiny (2e-2): whether it is there the ops' cases see.
constexpr double kMxKlTolerance = 48 * kKlTolerance;

struct Shape {
  int hidden, intermediate, heads, kv_heads, head_dim, experts, top_k, vocab, tokens;
  int window;       // 0: full attention
  int singles = 0;  // the last so many of the tokens go one at a time
  int layers = 1;   // all alike
};

// Odd sizes: hidden of 1, 3 and 9 blocks, one to eight query heads a KV head, a vocabulary that fills no
// tile, token counts around every tile, page and window.
constexpr Shape kQuick[] = {
    {96, 96, 4, 2, 32, 5, 4, 211, 1, 128},
    {96, 160, 8, 1, 64, 24, 4, 300, 33, 0},
    {288, 96, 8, 8, 64, 7, 2, 333, 40, 24},
};
constexpr Shape kFull[] = {
    {32, 32, 1, 1, 32, 1, 1, 1, 1, 0},           {32, 64, 2, 1, 32, 3, 3, 31, 31, 128},
    {64, 32, 6, 3, 64, 33, 4, 33, 33, 0},        {96, 96, 3, 1, 64, 5, 1, 17, 127, 128},
    {288, 160, 16, 2, 64, 24, 4, 480, 128, 128}, {288, 288, 8, 4, 128, 13, 4, 100, 129, 128},
    {160, 96, 8, 2, 64, 128, 4, 257, 300, 0},    {2880, 2880, 64, 8, 64, 6, 4, 65, 9, 0},
    {2880, 2880, 64, 8, 64, 6, 4, 65, 1, 0},
};
// Hopper has other kernels for these than for 1 and 9 tokens: experts of 3, 16, 27, 87 and 240 tokens each,
// more than 32 experts to choose from, and jobs; projections of 24 rows, and so wide that tiles of 64, 112
// and 128 tokens fill 132 multiprocessors best.
constexpr Shape kExpertsOf[] = {
    {2880, 2880, 1, 1, 64, 6, 4, 65, 4, 0},   {2880, 2880, 1, 1, 64, 6, 4, 65, 24, 0},
    {2880, 2880, 1, 1, 64, 6, 4, 65, 40, 0},  {2880, 2880, 1, 1, 64, 6, 4, 65, 130, 0},
    {2880, 2880, 1, 1, 64, 6, 4, 65, 360, 0}, {2880, 2880, 1, 1, 64, 40, 4, 65, 3, 0},
    {2880, 2880, 1, 1, 64, 40, 4, 65, 40, 0},
};
constexpr Shape kProjectionsOf[] = {
    {2880, 32, 64, 8, 64, 1, 1, 33, 24, 0},
    {448, 32, 81, 9, 128, 1, 1, 33, 120, 0},
    {448, 32, 81, 9, 128, 1, 1, 33, 224, 0},
    {448, 32, 81, 9, 128, 1, 1, 33, 250, 0},
};

// Decoding at depths around the pieces in which attention may be cut (blocks of 128 keys and spans of 1,024,
// up to 16 shares of 5 pages and what lies beyond), windows across them, a window wider than a span.
constexpr Shape kDeepQuick[] = {
    {96, 32, 8, 1, 64, 1, 1, 31, 140, 0, 16},
    {96, 32, 4, 2, 32, 1, 1, 31, 262, 128, 12},
    {32, 32, 2, 1, 32, 1, 1, 31, 1030, 0, 9},
};
constexpr Shape kDeep[] = {
    {96, 32, 8, 1, 64, 1, 1, 31, 1036, 0, 20},     {96, 32, 8, 2, 64, 1, 1, 31, 1160, 128, 143},
    {64, 32, 3, 1, 32, 1, 1, 31, 3080, 0, 12},     {64, 32, 2, 1, 32, 1, 1, 31, 2062, 1000, 20},
    {64, 32, 16, 1, 128, 1, 1, 31, 1030, 600, 10}, {32, 32, 2, 1, 32, 1, 1, 31, 8500, 0, 40},
};

constexpr Format kExperts[] = {Format::kMxfp4, Format::kMxfp4Gguf, Format::kBF16};

// Each rank takes at least a KV head, and 32 rows of every matrix (check_ranks); GPUs take two layers.
Shape for_ranks(Shape s, int ranks) {
  if (ranks == 1) return s;
  const int kv_heads = std::max(s.kv_heads, ranks);
  s.heads = s.heads / s.kv_heads * kv_heads, s.kv_heads = kv_heads;
  for (int* rows : {&s.hidden, &s.intermediate, &s.vocab}) *rows = std::max(*rows, 32 * ranks);
  s.layers = 2;
  return s;
}

ModelConfig config_of(const Shape& s) {
  return {.name = "verify",
          .layers = s.layers,
          .hidden = s.hidden,
          .intermediate = s.intermediate,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .experts = s.experts,
          .experts_per_token = s.top_k,
          .vocab = s.vocab,
          .window = s.window > 0 ? s.window : 128,
          .sliding = std::vector<bool>(static_cast<size_t>(s.layers), s.window > 0),
          .max_context = 16384};
}

// The weights of one shape: F32 throughout and silent, and in every format.
class Bench {
 public:
  Bench(const Shape& shape, uint64_t seed)
      : shape_(shape),
        config_(config_of(shape)),
        seed_(seed),
        plain_(make_random_model(config_, {.seed = seed, .dense = Format::kF32})),
        zeros_(static_cast<size_t>(shape.hidden) *
               static_cast<size_t>(std::max(config_.q_size(), shape.intermediate))) {
    std::mt19937_64 rng(seed);
    for (int i = 0; i < shape.tokens; ++i)
      tokens_.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(shape.vocab)));
  }

  const ModelConfig& config() const { return config_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  int singles() const { return shape_.singles; }
  // Neither attention nor experts add anything to the residual.
  ModelWeights silent() const {
    ModelWeights m = plain_;
    for (LayerWeights& layer : m.layers) silence_attention(layer), silence_experts(layer);
    return m;
  }
  ModelWeights embeddings(Format format) {
    make_other_dense(format);
    ModelWeights m = silent();
    m.embed = other_.embed, m.head = other_.head;
    return m;
  }
  ModelWeights attention(Format qkv, Format o) {
    ModelWeights m = plain_;
    make_other_dense(qkv == Format::kF32 ? o : qkv);
    for (size_t i = 0; i < m.layers.size(); ++i) {
      LayerWeights& layer = m.layers[i];
      const LayerWeights& other = other_.layers[i];
      silence_experts(layer);
      if (qkv != Format::kF32) layer.q = other.q, layer.k = other.k, layer.v = other.v;
      if (o != Format::kF32) layer.o = other.o;
    }
    return m;
  }
  // Only the first layer's experts add something. A router behind them could choose the other one of two
  // experts that are nearly as good.
  ModelWeights experts(Format format) {
    ModelWeights m = silent();
    ModelConfig small = config_;
    small.vocab = 1;  // its embedding is not used
    other_ = make_random_model(small, {.seed = seed_, .dense = Format::kF32, .experts = format});
    for (size_t i = 0; i < m.layers.size(); ++i) {
      LayerWeights& layer = m.layers[i];
      const LayerWeights& other = other_.layers[i];
      layer.gate = other.gate, layer.up = other.up;
      if (i == 0) layer.down = other.down, layer.down_bias = plain_.layers[i].down_bias;
    }
    return m;
  }
  std::string describe(Format format) const {
    return fmt::format("{}{} hidden {} inter {} heads {}/{}x{} experts {}/{} vocab {} tokens {}{}{}",
                       format_name(format), format == Format::kMxfp4Gguf ? " (GGUF order)" : "",
                       shape_.hidden, shape_.intermediate, shape_.heads, shape_.kv_heads, shape_.head_dim,
                       shape_.top_k, shape_.experts, shape_.vocab, shape_.tokens,
                       shape_.window > 0 ? fmt::format(" window {}", shape_.window) : "",
                       shape_.singles > 0 ? fmt::format(" singly {}", shape_.singles) : "");
  }

 private:
  void make_other_dense(Format format) {
    ModelConfig small = config_;
    small.experts = small.experts_per_token = 1, small.intermediate = 32;  // its experts are not used
    other_ = make_random_model(small, {.seed = seed_, .dense = format});
  }
  MatrixView zeros(int64_t rows, int64_t cols) const {
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(zeros_.data()));
  }
  void silence_attention(LayerWeights& layer) const {
    layer.o = zeros(layer.o.rows, layer.o.cols);
    layer.o_bias = zeros(1, layer.o_bias.cols);
  }
  void silence_experts(LayerWeights& layer) const {
    layer.down = {zeros(layer.down.first.rows, layer.down.first.cols), layer.down.count, 0, 0};
    layer.down_bias = zeros(layer.down_bias.rows, layer.down_bias.cols);
    layer.down_bias.row_stride = 0;  // one row of zeros stands for every expert's
  }

  Shape shape_;
  ModelConfig config_;
  uint64_t seed_;
  ModelWeights plain_, other_;  // other_ holds the storage of the views that were swapped in last
  std::vector<float> zeros_;
  std::vector<int32_t> tokens_;
};

// The reference that rounds where the backend means to.
BackendFactory reference_of(const VerifyOptions& options, const BackendCaps& caps) {
  const MoePath path =
      caps.rounding == MoePath::kFp8 ? MoePath::kAuto : caps.rounding;  // the scale is a device's
  return [kv = options.kv, dense = options.dense, path] {
    return create_backend("reference", {.dense = dense, .moe_path = path, .kv = kv});
  };
}
BackendCaps caps_of(const BackendFactory& backend) {
  const auto probe = backend();
  return probe.ok() ? probe.value()->caps() : BackendCaps();
}

Result<std::vector<float>> logits_of(const BackendFactory& factory, const ModelConfig& config,
                                     const ModelWeights& weights, std::span<const int32_t> tokens, int chunk,
                                     int singles = 0) {
  ASSIGN_OR_RETURN(const auto backend, factory());
  RETURN_IF_ERROR(backend->load(config, weights, {}));
  ASSIGN_OR_RETURN(SequenceRunner runner,
                   SequenceRunner::create(*backend, config,
                                          {.max_tokens = static_cast<int>(tokens.size()), .chunk = chunk}));
  std::vector<float> logits;
  const size_t together = tokens.size() - static_cast<size_t>(singles);
  RETURN_IF_ERROR(runner.append(tokens.first(together), SequenceRunner::Wanted::kAll, logits));
  for (size_t i = together; i < tokens.size(); ++i) {
    std::vector<float> row;
    RETURN_IF_ERROR(runner.append(tokens.subspan(i, 1), SequenceRunner::Wanted::kAll, row));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

class Verifier {
 public:
  Verifier(const BackendFactory& backend, const VerifyOptions& options)
      : backend_(backend),
        caps_(caps_of(backend)),
        reference_(reference_of(options, caps_)),
        options_(options) {}

  Status run(const Shape& shape) {
    Bench bench(for_ranks(shape, options_.ranks), options_.seed);
    RETURN_IF_ERROR(run_embeddings(bench));
    if (options_.dense) return {};
    ASSIGN_OR_RETURN(const std::vector<float> base, base_of(bench));
    RETURN_IF_ERROR(run_attention(bench, base));
    for (const Format format : kExperts) RETURN_IF_ERROR(run_experts(bench, format, base));
    return run_chunks(bench);
  }
  Status run_experts(const Shape& shape) {
    Bench bench(for_ranks(shape, options_.ranks), options_.seed);
    ASSIGN_OR_RETURN(const std::vector<float> base, base_of(bench));
    return run_experts(bench, Format::kMxfp4, base);
  }
  Status run_attention(const Shape& shape) {
    Bench bench(for_ranks(shape, options_.ranks), options_.seed);
    ASSIGN_OR_RETURN(const std::vector<float> base, base_of(bench));
    return run_attention(bench, base);
  }
  Status run_deep(const Shape& shape) {
    Bench bench(for_ranks(shape, options_.ranks), options_.seed);
    ASSIGN_OR_RETURN(const std::vector<float> base, base_of(bench));
    const ModelWeights weights = bench.attention(Format::kF32, Format::kF32);
    RETURN_IF_ERROR(compare("attend", bench, Format::kF32, weights, base, attend_tolerance()));
    const BackendFactory& invariant = options_.invariant ? options_.invariant : backend_;
    ASSIGN_OR_RETURN(const std::vector<float> whole,
                     logits_of(invariant, bench.config(), weights, bench.tokens(), options_.chunk));
    ASSIGN_OR_RETURN(const std::vector<float> singly,
                     logits_of(invariant, bench.config(), weights, bench.tokens(), 77, bench.singles()));
    add("singly", bench.describe(Format::kF32), worst_row_error(singly, whole, base, bench.config().vocab),
        0);
    return {};
  }
  std::vector<VerifyCase> take() { return std::move(cases_); }

 private:
  double attend_tolerance() const {
    return options_.kv == KvFormat::kFp8 ? kFp8AttendTolerance : kAttendTolerance;
  }
  double tolerance_of(Format format, Operand operand = Operand::kDense) const {
    // Rounded activations are the reference's too, as is what they were rounded to before: what is left is
    // the rounding of the ops around them.
    const Format rounded = activation_format(caps_.rounding, operand, format);
    if (rounded != Format::kF32 && caps_.rounding == MoePath::kFp8) return kFp8ExpertsTolerance;
    if (rounded != Format::kF32) return 2 * kBf16Tolerance;
    if (!is_plain(format)) return kInt8Tolerance;
    // A device rounds the op's own activations and those of the projections around it.
    if (caps_.half_activations) return 2 * kBf16Tolerance;
    return format == Format::kF32 ? kF32Tolerance : kBf16Tolerance;
  }
  Result<std::vector<float>> base_of(const Bench& bench) const {
    return logits_of(reference_, bench.config(), bench.silent(), bench.tokens(), options_.chunk);
  }
  Status run_embeddings(Bench& bench) {
    const std::vector<float> nothing(bench.tokens().size() * static_cast<size_t>(bench.config().vocab));
    for (const FormatInfo& f : formats())
      RETURN_IF_ERROR(compare("embed+unembed", bench, f.format, bench.embeddings(f.format), nothing,
                              tolerance_of(made_of(f.format, options_.dense))));
    return {};
  }
  Status run_experts(Bench& bench, Format format, const std::vector<float>& base) {
    return compare("moe", bench, format, bench.experts(format), base,
                   tolerance_of(format, Operand::kExpertInput));
  }
  // "attend" has F32 projections; the others take their format's noise on top of its.
  Status run_attention(Bench& bench, const std::vector<float>& base) {
    for (const FormatInfo& f : formats()) {
      const Format format = f.format;
      if (format == Format::kF32) {
        RETURN_IF_ERROR(
            compare("attend", bench, format, bench.attention(format, format), base, attend_tolerance()));
        continue;
      }
      const double tolerance = std::hypot(attend_tolerance(), tolerance_of(format));
      const bool moved = activation_format(caps_.rounding, Operand::kDense, format) != Format::kF32 &&
                         !caps_.half_activations;
      RETURN_IF_ERROR(compare("qkv", bench, format, bench.attention(format, Format::kF32), base, tolerance));
      RETURN_IF_ERROR(compare("project", bench, format, bench.attention(Format::kF32, format), base,
                              moved ? std::hypot(tolerance, kMxOfAttendTolerance) : tolerance));
    }
    return {};
  }
  Status compare(const char* op, const Bench& bench, Format format, const ModelWeights& weights,
                 const std::vector<float>& base, double tolerance) {
    ASSIGN_OR_RETURN(const std::vector<float> want,
                     logits_of(reference_, bench.config(), weights, bench.tokens(), options_.chunk));
    ASSIGN_OR_RETURN(
        const std::vector<float> got,
        logits_of(backend_, bench.config(), weights, bench.tokens(), options_.chunk, bench.singles()));
    add(op, bench.describe(format), worst_row_error(got, want, base, bench.config().vocab), tolerance);
    return {};
  }
  // Steps of 7 rows must give the bits of one step (a last single row may be rounded otherwise on a device).
  Status run_chunks(Bench& bench) {
    const ModelWeights weights =
        make_random_model(bench.config(), {.seed = options_.seed, .dense = Format::kBF16});
    ASSIGN_OR_RETURN(const std::vector<float> whole,
                     logits_of(backend_, bench.config(), weights, bench.tokens(), options_.chunk));
    ASSIGN_OR_RETURN(const std::vector<float> parts, logits_of(backend_, bench.config(), weights,
                                                               bench.tokens(), std::min(7, options_.chunk)));
    const std::vector<float> nothing(whole.size());
    // A sum in another order may bring an activation to the next of its 8-bit values.
    const bool eight_bits =
        activation_format(caps_.rounding, Operand::kExpertInput, Format::kMxfp4) != Format::kF32;
    const double tolerance = eight_bits ? 2 * kBf16Tolerance : kBf16Tolerance;
    add("chunks", bench.describe(Format::kMxfp4),
        worst_row_error(parts, whole, nothing, bench.config().vocab), caps_.half_activations ? tolerance : 0);
    return {};
  }
  void add(const char* op, std::string shape, double error, double tolerance) {
    cases_.push_back({op, std::move(shape), error, tolerance, error <= tolerance});
    if (options_.report) options_.report(cases_.back());
  }

  const BackendFactory& backend_;
  const BackendCaps caps_;
  const BackendFactory reference_;
  const VerifyOptions& options_;
  std::vector<VerifyCase> cases_;
};

}  // namespace

double worst_row_error(std::span<const float> got, std::span<const float> reference,
                       std::span<const float> base, int vocab) {
  MOESAIC_CHECK(got.size() == reference.size() && base.size() == reference.size());
  double added = 0, row = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = double{got[i]} - double{reference[i]};
    const double op = double{reference[i]} - double{base[i]};
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    added += op * op, row += difference * difference;
    if ((i + 1) % static_cast<size_t>(vocab) == 0) worst = std::max(worst, row), row = 0;
  }
  if (worst == 0) return 0;
  return std::sqrt(worst / vocab) / std::sqrt(added / static_cast<double>(got.size()));
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double top_p = *std::max_element(p.begin(), p.end()), top_q = *std::max_element(q.begin(), q.end());
  double sum_p = 0, sum_q = 0, kl = 0;
  for (size_t i = 0; i < p.size(); ++i) sum_p += std::exp(p[i] - top_p), sum_q += std::exp(q[i] - top_q);
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - top_p - std::log(sum_p), log_q = q[i] - top_q - std::log(sum_q);
    kl += std::exp(log_p) * (log_p - log_q);
  }
  return kl;
}

Result<std::vector<VerifyCase>> verify_ops(const BackendFactory& backend, const VerifyOptions& options) {
  Verifier verifier(backend, options);
  if (caps_of(backend).rounding == MoePath::kFp8) {  // other sizes are refused
    for (const Shape& shape : kExpertsOf) RETURN_IF_ERROR(verifier.run_experts(shape));
    return verifier.take();
  }
  for (const Shape& shape : kQuick) RETURN_IF_ERROR(verifier.run(shape));
  const bool as_loaded = !options.dense;
  for (const Shape& shape : kDeepQuick) {
    if (as_loaded) RETURN_IF_ERROR(verifier.run_deep(shape));
  }
  if (options.quick) return verifier.take();
  for (const Shape& shape : kFull) RETURN_IF_ERROR(verifier.run(shape));
  if (!as_loaded) return verifier.take();
  for (const Shape& shape : kProjectionsOf) RETURN_IF_ERROR(verifier.run_attention(shape));
  for (const Shape& shape : kExpertsOf) RETURN_IF_ERROR(verifier.run_experts(shape));
  for (const Shape& shape : kDeep) RETURN_IF_ERROR(verifier.run_deep(shape));
  return verifier.take();
}

namespace {

// Not finite where a value is not.
double upper_quartile(std::span<double> values) {
  for (const double v : values) {
    if (!std::isfinite(v)) return v;
  }
  if (values.empty()) return 0;
  const auto at = values.begin() + (std::ssize(values) - 1) * 3 / 4;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

Result<VerifyCase> verify_model(const ModelConfig& config, const ModelWeights& weights,
                                const BackendFactory& backend, int tokens, const VerifyOptions& options) {
  std::mt19937_64 rng(options.seed);
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i)
    prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(config.vocab)));
  // The release hook is for a backend that has its own copy; here a second one still reads the views.
  ModelWeights shared = weights;
  shared.release = shared.evict = nullptr;
  const int singles = tokens / 2;
  ASSIGN_OR_RETURN(const std::vector<float> got,
                   logits_of(backend, config, shared, prompt, options.chunk, singles));
  const BackendCaps caps = caps_of(backend);
  ASSIGN_OR_RETURN(const std::vector<float> want,
                   logits_of(reference_of(options, caps), config, shared, prompt, options.chunk));
  const size_t vocab = config.vocab, together = tokens - singles;
  std::vector<double> divergences;
  for (size_t row = 0; row < want.size(); row += vocab)
    divergences.push_back(
        kl_divergence(std::span(want).subspan(row, vocab), std::span(got).subspan(row, vocab)));
  const std::span<double> all = divergences;
  const double first = upper_quartile(all.first(together)), second = upper_quartile(all.subspan(together));
  const Format experts = activation_format(caps.rounding, Operand::kExpertInput,
                                           weights.layers[0].gate.first.format),
               head = activation_format(caps.rounding, Operand::kDense,
                                        made_of(weights.head.format, options.dense));
  const bool mx = is_mx(experts) || is_mx(head);
  const bool int8 =
      (caps.int8_experts || !caps.half_activations) && !is_plain(weights.layers[0].gate.first.format);
  const double tolerance = mx ? kMxKlTolerance : int8 ? kInt8KlTolerance : kKlTolerance;
  VerifyCase result{
      .op = "model",
      .shape = fmt::format("{}, {} tokens, {} of them singly, KL", config.name, tokens, singles),
      .error = std::isnan(second) ? second : std::max(first, second),
      .tolerance = tolerance};
  result.ok = result.error <= result.tolerance;
  if (options.report) options.report(result);
  return result;
}

}  // namespace moesaic
