#include "model/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/random_model.h"

namespace moesaic {
namespace {

// The reference with one thing wrong, which it learns at load.
class Faulty final : public Backend {
 public:
  using Fault = std::function<void(ModelConfig&, LayerWeights&)>;
  // caps: by default as if it rounded nothing on purpose.
  explicit Faulty(Fault fault, const BackendOptions& options = {}, BackendCaps caps = {.name = "faulty"})
      : inner_(create_backend("reference", options).value()),
        fault_(std::move(fault)),
        caps_(std::move(caps)) {}

  BackendCaps caps() const override { return caps_; }
  double kv_token_bytes(const ModelConfig& config) const override { return inner_->kv_token_bytes(config); }
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& p) override {
    ModelConfig c = config;
    ModelWeights w = weights;
    fault_(c, w.layers[0]);
    return inner_->load(c, w, p);
  }
  Status alloc_kv(const KvLayout& layout) override { return inner_->alloc_kv(layout); }
  Status begin_step(const Batch& batch) override { return inner_->begin_step(batch); }
  void embed() override { inner_->embed(); }
  void qkv(int layer) override { inner_->qkv(layer); }
  void attend(int layer) override { inner_->attend(layer); }
  void project(int layer) override { inner_->project(layer); }
  void moe(int layer) override { inner_->moe(layer); }
  void unembed(std::span<float> logits) override { inner_->unembed(logits); }
  Status end_step() override { return inner_->end_step(); }

 private:
  std::unique_ptr<Backend> inner_;
  Fault fault_;
  BackendCaps caps_;
};

bool any_failure(const std::vector<VerifyCase>& cases, const std::string& op) {
  return std::any_of(cases.begin(), cases.end(), [&](const VerifyCase& c) { return c.op == op && !c.ok; });
}

std::vector<VerifyCase> verify_with(const Faulty::Fault& fault) {
  const BackendFactory factory = [&]() -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<Faulty>(fault));
  };
  auto cases = verify_ops(factory, {.quick = true});
  EXPECT_TRUE(cases.ok()) << cases.status().message();
  return cases.ok() ? std::move(cases).value() : std::vector<VerifyCase>{};
}

TEST(Verify, TheReferenceEqualsItself) {
  for (const VerifyCase& c : verify_with([](ModelConfig&, LayerWeights&) {})) EXPECT_EQ(c.error, 0) << c.op;
}

// GPUs have no ranks for a model of one layer.
TEST(Verify, RanksHaveModelsOfTwoLayers) {
  int layers = 0;
  const BackendFactory factory = [&]() -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(
        std::make_unique<Faulty>([&](ModelConfig& config, LayerWeights&) { layers = config.layers; }));
  };
  for (const int ranks : {1, 2}) {
    const auto cases = verify_ops(factory, {.quick = true, .ranks = ranks, .dense = Format::kBF16});
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    EXPECT_EQ(layers, ranks);
  }
}

// A backend that says that it rounds to MXFP8 and does not is seen.
TEST(Verify, TheMxfp8RuleIsSeen) {
  const BackendFactory silent = []() -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(
        std::make_unique<Faulty>([](ModelConfig&, LayerWeights&) {}, BackendOptions{},
                                 BackendCaps{.name = "faulty", .rounding = MoePath::kW4A8}));
  };
  const auto cases = verify_ops(silent, {.quick = true});
  ASSERT_TRUE(cases.ok());
  EXPECT_TRUE(any_failure(cases.value(), "moe"));
}

// E4M3 keeps four bits, rounding by 2.6% rms, of x and again of SwiGLU's result; other formats' experts stay
// as they are.
TEST(Verify, MxActivationsRoundMxfp4ExpertsOnly) {
  const BackendFactory rounding = []() -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<Faulty>([](ModelConfig&, LayerWeights&) {},
                                                             BackendOptions{.moe_path = MoePath::kW4A8}));
  };
  const auto cases = verify_ops(rounding, {.quick = true});
  ASSERT_TRUE(cases.ok());
  for (const VerifyCase& c : cases.value()) {
    if (c.op != "moe") continue;
    const bool mxfp4 = c.shape.starts_with("MXFP4");
    EXPECT_LT(c.error, mxfp4 ? 0.2 : 1e-9) << c.shape;
    EXPECT_GT(c.error, mxfp4 ? 0.01 : -1.0) << c.shape;
  }
}

// The cpu rounds by the reference's rule and multiplies exactly: where attention's integers are not before
// it, sums differ only. With two values for each activation they may bring the second one to its neighbour.
TEST(Verify, TheCpuRoundsToMxToo) {
  const BackendOptions cases_of[] = {{.moe_path = MoePath::kW4A8},
                                     {.moe_path = MoePath::kW4A8x2},
                                     {.dense = Format::kMxfp8, .moe_path = MoePath::kW4A8}};
  for (const BackendOptions& options : cases_of) {
    const auto cases =
        verify_ops([&] { return create_backend("cpu", options); }, {.quick = true, .dense = options.dense});
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    for (const VerifyCase& c : cases.value()) {
      const bool mx = c.shape.starts_with("MX") || options.dense == Format::kMxfp8;
      const bool alone = c.op == "moe" || c.op == "embed+unembed";
      const double sums = options.moe_path == MoePath::kW4A8x2 ? 1e-3 : 1e-5;
      EXPECT_LE(c.error, mx && alone ? sums : c.tolerance) << c.op << " " << c.shape;
    }
  }
}

// The reference rounds weights as --dense says, and with w4a8 activations too. A backend that
// rounds no activations is seen, and one that keeps the weights as well.
TEST(Verify, DenseAsMx) {
  const auto verify = [](const BackendOptions& options, std::optional<Format> said, bool says_mx) {
    const BackendFactory backend = [&]() -> Result<std::unique_ptr<Backend>> {
      return std::unique_ptr<Backend>(
          std::make_unique<Faulty>([](ModelConfig&, LayerWeights&) {}, options,
                                   BackendCaps{.name = "faulty",
                                               .half_activations = true,
                                               .rounding = says_mx ? MoePath::kW4A8 : MoePath::kAuto}));
    };
    return verify_ops(backend, {.quick = true, .dense = said}).value();
  };
  constexpr MoePath kW4A8 = MoePath::kW4A8;
  using enum Format;
  for (const auto& cases : {verify({.moe_path = kW4A8}, std::nullopt, true),
                            verify({.dense = kMxfp8, .moe_path = kW4A8}, kMxfp8, true),
                            verify({.dense = kMxfp4}, kMxfp4, false)}) {
    for (const VerifyCase& c : cases) EXPECT_EQ(c.error, 0) << c.op << " " << c.shape;
  }
  EXPECT_TRUE(any_failure(verify({}, std::nullopt, true), "embed+unembed"));
  EXPECT_TRUE(any_failure(verify({.dense = kMxfp4}, kMxfp4, true), "embed+unembed"));
  EXPECT_TRUE(any_failure(verify({.moe_path = kW4A8}, kMxfp8, true), "embed+unembed"));
}

// Every instruction set that this machine runs; "auto" is the best of them.
TEST(Verify, TheCpuPasses) {
  int run = 0;
  for (const char* isa : {"auto", "amx", "amx_emulated", "avx512", "avx512vnni", "avx512bw", "avxvnni",
                          "avx2", "bf16", "i8mm", "dotprod", "scalar"}) {
    const BackendFactory factory = [&] { return create_backend("cpu", {.threads = 2, .isa = isa}); };
    if (!factory().ok()) continue;
    const auto cases = verify_ops(factory, {.quick = true, .seed = 7});
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    for (const VerifyCase& c : cases.value())
      EXPECT_TRUE(c.ok) << isa << " " << c.op << " " << c.shape << ": " << c.error << " > " << c.tolerance;
    ++run;
  }
  EXPECT_GE(run, 2);  // the scalar kernels run everywhere
}

// Ranks have models of two layers. AMX rounds the first layer's activations to BF16, and then the second
// layer's router may choose the other one of two experts that are nearly as good: no fault.
TEST(Verify, RanksPassWithActivationsInBf16) {
  for (const char* isa : {"auto", "amx_emulated"}) {
    const BackendFactory factory = [&] { return create_backend("cpu", {.tp = 2, .threads = 2, .isa = isa}); };
    if (!factory().ok()) continue;
    const auto cases = verify_ops(factory, {.quick = true, .ranks = 2});
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    for (const VerifyCase& c : cases.value())
      EXPECT_TRUE(c.ok) << isa << " " << c.op << " " << c.shape << ": " << c.error << " > " << c.tolerance;
  }
}

// Each of these small faults must be seen in its op, and the other op must stay clean.
TEST(Verify, SeesFaultsInAttention) {
  const Faulty::Fault faults[] = {
      [](ModelConfig& c, LayerWeights&) { c.window -= 1; },
      [](ModelConfig& c, LayerWeights&) { c.rope.theta *= 2; },
      [](ModelConfig& c, LayerWeights&) { c.rope.factor = 1; },
      [](ModelConfig&, LayerWeights& w) { w.sinks.col_stride = 0; },
      [](ModelConfig&, LayerWeights& w) { w.k_bias = w.v_bias; },
      [](ModelConfig&, LayerWeights& w) { w.attn_norm = w.mlp_norm; },
  };
  for (const Faulty::Fault& fault : faults) {
    const auto cases = verify_with(fault);
    EXPECT_TRUE(any_failure(cases, "attend")) << &fault - faults;
    EXPECT_FALSE(any_failure(cases, "moe")) << &fault - faults;
  }
}

TEST(Verify, SeesFaultsInExperts) {
  const Faulty::Fault faults[] = {
      [](ModelConfig& c, LayerWeights&) { c.swiglu_alpha = 1.3; },
      [](ModelConfig& c, LayerWeights&) { c.swiglu_limit = 5; },
      [](ModelConfig& c, LayerWeights&) { c.experts_per_token = 1; },
      [](ModelConfig&, LayerWeights& w) { std::swap(w.gate, w.up); },
      [](ModelConfig&, LayerWeights& w) { w.gate_bias = w.up_bias; },
      [](ModelConfig&, LayerWeights& w) { w.router_bias.col_stride = 0; },
  };
  for (const Faulty::Fault& fault : faults) {
    const auto cases = verify_with(fault);
    EXPECT_TRUE(any_failure(cases, "moe")) << &fault - faults;
    EXPECT_FALSE(any_failure(cases, "attend")) << &fault - faults;
  }
}

TEST(Verify, ErrorOfTheWorstRow) {
  const std::vector<float> want = {1, 1, 2, 2}, base = {0, 0, 1, 1};
  EXPECT_EQ(worst_row_error(want, want, base, 2), 0);
  EXPECT_NEAR(worst_row_error(std::vector<float>{1, 1, 2.1f, 1.9f}, want, base, 2), 0.1, 1e-6);
  EXPECT_TRUE(std::isinf(worst_row_error(std::vector<float>{1, 1, NAN, 2}, want, base, 2)));
}

TEST(Verify, DivergenceOfKnownDistributions) {
  const std::vector<float> even = {0, 0}, odd = {std::log(3.0f), 0};
  EXPECT_NEAR(kl_divergence(even, even), 0, 1e-12);
  EXPECT_NEAR(kl_divergence(odd, even), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-6);
}

TEST(Verify, AWholeModel) {
  ModelConfig c = published_config("gpt-oss-20b").value();
  c.layers = 1, c.sliding.resize(1), c.hidden = c.intermediate = 64, c.heads = c.kv_heads = 2, c.vocab = 50;
  c.experts = c.experts_per_token;
  const auto result =
      verify_model(c, make_random_model(c, {}), [] { return create_backend("cpu", {}); }, 20, {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_TRUE(result.value().ok) << result.value().error;
  EXPECT_GT(result.value().error, 0);
}

// BF16 keys and values against F32 ones: with MXFP8 behind them the model differs by many times as much.
TEST(Verify, Mxfp8MakesAWholeModelsNoiseLarger) {
  ModelConfig c = published_config("gpt-oss-20b").value();
  c.layers = 2, c.sliding.resize(2), c.hidden = c.intermediate = 64, c.heads = c.kv_heads = 2, c.vocab = 50;
  c.experts = c.experts_per_token;  // no choice of experts to lose
  const auto error_of = [&](MoePath path) {
    const BackendFactory backend = [&] {
      return create_backend("reference", {.moe_path = path, .kv = KvFormat::kBf16});
    };
    const auto result = verify_model(c, make_random_model(c, {}), backend, 40, {});
    EXPECT_TRUE(result.ok() && result.value().ok) << result.value().error;
    EXPECT_EQ(result.value().tolerance, path == MoePath::kW4A8 ? 48e-3 : 10e-3);
    return result.value().error;
  };
  const double plain = error_of(MoePath::kAuto), mxfp8 = error_of(MoePath::kW4A8);
  EXPECT_GT(mxfp8, 8 * plain) << plain;
  EXPECT_LT(mxfp8, 200 * plain) << plain;
}

}  // namespace
}  // namespace moesaic
