// LoRA adapters: the reference against peft (tests/golden/lora, made by tools/golden/make_lora_goldens.py),
// every backend against the reference.
#include "checkpoint/lora.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/merge_adapter.h"
#include "model/random_model.h"
#include "model/verify.h"
#include "model_golden.h"

namespace moesaic {
namespace {

std::string lora_folder() { return std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/lora/"; }

struct LoraGolden {
  ModelConfig config;
  ModelWeights weights;  // without the adapters
  std::vector<std::string> adapters;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocab]

  ModelWeights adapted(Format dense = Format::kBF16) const {
    ModelWeights w = make_random_model(config, {.seed = seed, .dense = dense});
    EXPECT_EQ(apply_lora(adapters, config, w).message(), "");
    return w;
  }
  uint64_t seed = 0;
};

LoraGolden load(const std::string& name) {
  const auto j = nlohmann::json::parse(std::ifstream(lora_folder() + name + ".json"));
  LoraGolden g;
  g.config = load_golden(j.at("model")).config;
  g.seed = j.at("seed");
  g.weights = make_random_model(g.config, {.seed = g.seed});
  for (const std::string adapter : j.at("adapters")) g.adapters.push_back(lora_folder() + adapter);
  g.tokens = j.at("tokens").get<std::vector<int32_t>>();
  g.logits.resize(g.tokens.size() * static_cast<size_t>(g.config.vocab));
  std::ifstream file(lora_folder() + name + ".logits", std::ios::binary);
  file.read(reinterpret_cast<char*>(g.logits.data()),
            static_cast<std::streamsize>(g.logits.size() * sizeof(float)));
  EXPECT_TRUE(file.good());
  return g;
}

class Lora : public ::testing::TestWithParam<const char*> {
 protected:
  LoraGolden golden_ = load(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Cases, Lora,
                         ::testing::Values("attention", "query-value", "patterns", "router", "experts",
                                           "one-layer-of-experts", "two-adapters"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Lora, ReferenceAgreesWithPeft) {
  const auto adapted = load_backend("reference", golden_.config, golden_.adapted());
  const auto got = run_sequence(*adapted, golden_.config, golden_.tokens, 512, true);
  const Distance d = distance(got, golden_.logits);
  fmt::print("{}: largest relative difference from peft {:.1e}\n", GetParam(), d.max);
  EXPECT_LT(d.max, 1e-5);
  // The adapters do something: the bound above would not notice a model without them otherwise.
  const auto plain = load_backend("reference", golden_.config, golden_.weights);
  EXPECT_GT(distance(run_sequence(*plain, golden_.config, golden_.tokens, 512, true), golden_.logits).max,
            0.05);
}

// Where both choose the same experts: elsewhere these unsmooth models land far off (model_golden_test.cc).
TEST_P(Lora, DevicesStayNearTheReference) {
  const ModelWeights weights = golden_.adapted();
  const auto reference = load_backend("reference", golden_.config, weights);
  const auto want = run_sequence(*reference, golden_.config, golden_.tokens, 512, true);
  for (const char* device : devices()) {
    if (std::string_view(device) == "reference") continue;
    const auto backend = load_backend(device, golden_.config, weights);
    const auto got = run_sequence(*backend, golden_.config, golden_.tokens, 512, true);
    const auto vocab = static_cast<size_t>(golden_.config.vocab);
    std::vector<double> kl;
    for (size_t row = 0; row < golden_.tokens.size(); ++row)
      kl.push_back(kl_divergence(std::span(want).subspan(row * vocab, vocab),
                                 std::span(got).subspan(row * vocab, vocab)));
    std::ranges::sort(kl);
    fmt::print("{} on {}: KL median {:.1e}, worst {:.1e}\n", GetParam(), device, kl[kl.size() / 2],
               kl.back());
    EXPECT_LT(kl[kl.size() / 2], 1e-3) << device;
  }
}

// One chunk, chunks of 7 and single tokens: the same bits, as without adapters.
TEST_P(Lora, ChunkingDoesNotChangeTheLogits) {
  const ModelWeights weights = golden_.adapted();
  for (const char* device : {"reference", "cpu"}) {
    const auto backend = load_backend(device, golden_.config, weights);
    const auto run = [&](int chunk) {
      return run_sequence(*backend, golden_.config, golden_.tokens, chunk, true);
    };
    const auto whole = run(1024);
    EXPECT_EQ(run(7), whole) << device;
    EXPECT_EQ(run(1), whole) << device;
  }
}

// The result of a device that merges adapters into BF16 matrices and rounds no activations.
TEST_P(Lora, MergedStaysNearPeft) {
  ModelWeights weights = golden_.adapted();
  ThreadPool pool(2);
  std::vector<MergedLayer> merged;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    auto layer = merge_adapter(weights.layers[i], weights.adapters[i], pool);
    ASSERT_TRUE(layer.ok());
    weights.layers[i] = layer->weights;
    merged.push_back(std::move(layer).value());
  }
  weights.adapters.clear();
  const auto backend = load_backend("reference", golden_.config, weights);
  const auto got = run_sequence(*backend, golden_.config, golden_.tokens, 512, true);
  const auto vocab = static_cast<size_t>(golden_.config.vocab);
  std::vector<double> kl;
  for (size_t row = 0; row < golden_.tokens.size(); ++row)
    kl.push_back(kl_divergence(std::span<const float>(golden_.logits).subspan(row * vocab, vocab),
                               std::span(got).subspan(row * vocab, vocab)));
  std::ranges::sort(kl);
  fmt::print("{} merged: KL median {:.1e}, worst {:.1e}\n", GetParam(), kl[kl.size() / 2], kl.back());
  EXPECT_LT(kl[kl.size() / 2], 1e-4);
}

// Quantised dense weights stay as they are: their products and the adapter's add up.
TEST(LoraOnQuantised, ReferenceAddsTheAdapterBesideQ8) {
  const LoraGolden golden = load("attention");
  const auto backend = load_backend("reference", golden.config, golden.adapted(Format::kQ8_0));
  const auto got = run_sequence(*backend, golden.config, golden.tokens, 512, true);
  const auto plain =
      load_backend("reference", golden.config,
                   make_random_model(golden.config, {.seed = golden.seed, .dense = Format::kQ8_0}));
  const auto without = run_sequence(*plain, golden.config, golden.tokens, 512, true);
  EXPECT_LT(distance(got, golden.logits).rms, 0.05);
  EXPECT_GT(distance(without, golden.logits).rms, 0.2);
}

// A scale of 0 is the model without the adapter; 2 and -1 are as if lora_alpha had been so.
TEST(LoraScale, ScaleOfTheCommandLineMultiplies) {
  const LoraGolden golden = load("attention");
  const auto run = [&](const ModelWeights& weights) {
    return run_sequence(*load_backend("reference", golden.config, weights), golden.config, golden.tokens,
                        512);
  };
  const auto scaled = [&](const std::vector<std::string>& adapters) {
    ModelWeights w = golden.weights;
    EXPECT_EQ(apply_lora(adapters, golden.config, w).message(), "");
    return run(w);
  };
  const std::string folder = golden.adapters[0];
  EXPECT_EQ(scaled({folder + ":0"}), run(golden.weights));
  EXPECT_LT(distance(scaled({folder + ":2"}), scaled({folder, folder})).max, 1e-6);
  EXPECT_LT(distance(scaled({folder, folder + ":-1"}), run(golden.weights)).max, 1e-5);
  EXPECT_GT(distance(scaled({folder}), run(golden.weights)).max, 0.05);
}

}  // namespace
}  // namespace moesaic
