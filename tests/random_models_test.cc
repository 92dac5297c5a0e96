// Random models of the shapes that a config may have: the CPU gives the reference's logits, and the same bits
// in one step and in chunks, with any number of threads and of ranks.
#include <gtest/gtest.h>

#include <random>

#include "base/sanitizer.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "model_golden.h"

namespace moesaic {
namespace {

struct RandomModel {
  std::mt19937 rng;
  ModelConfig config;
  ModelWeights weights;
  std::vector<int32_t> tokens;

  explicit RandomModel(uint32_t seed) : rng(seed), config(random_config()) {
    weights = make_random_model(config,
                                {.seed = seed,
                                 .dense = one_of({Format::kBF16, Format::kQ8_0, Format::kF16, Format::kF32}),
                                 .experts = one_of({Format::kMxfp4, Format::kMxfp4Gguf, Format::kBF16})});
    tokens.resize(static_cast<size_t>(between(1, 80)));
    for (int32_t& t : tokens) t = between(0, config.vocab - 1);
  }
  int between(int low, int high) {
    return low + static_cast<int>(rng() % static_cast<uint32_t>(high - low + 1));
  }
  template <typename T>
  T one_of(std::initializer_list<T> list) {
    return std::data(list)[rng() % list.size()];
  }
  ModelConfig random_config() {
    ModelConfig c{.name = "random",
                  .layers = between(1, 3),
                  .hidden = 32 * between(1, 9),
                  .intermediate = 32 * between(1, 9),
                  .kv_heads = between(1, 5),
                  .head_dim = 16 * between(1, 16),
                  .experts = between(1, 40),
                  .vocab = between(1, 300),
                  .window = one_of({1, 2, 31, 32, 33, between(1, 200)}),
                  .max_context = 2048};
    c.heads = c.kv_heads * between(1, 20);
    if (c.q_size() % 32 != 0) c.heads *= 2;
    c.experts_per_token = between(1, c.experts);
    for (int i = 0; i < c.layers; ++i) c.sliding.push_back(between(0, 1) == 1);
    return c;
  }
  // Returns the logits of all tokens; nothing where the model has too few heads or rows for so many ranks.
  std::vector<float> logits(const char* device, BackendOptions options, int chunk) const {
    options.max_rows = 512;
    auto backend = create_backend(device, options);
    EXPECT_EQ(backend.status().message(), "");
    if (!backend.ok()) return {};
    const Status status = backend.value()->load(config, weights, {});
    EXPECT_TRUE(status.ok() || options.tp > 1) << status.message();
    return status.ok() ? run_sequence(*backend.value(), config, tokens, chunk, true) : std::vector<float>();
  }
};

TEST(RandomModels, TheCpuAgreesWithTheReferenceAndWithItself) {
  constexpr uint32_t kSeeds = kMemoryIsSanitized ? 6 : 12;
  int ranks_compared = 0;
  for (uint32_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomModel model(seed);
    const std::vector<float> reference = model.logits("reference", {.threads = 2}, 512);
    for (const std::string isa : {"scalar", "avx2", "avx512", "amx_emulated", "amx", "i8mm"}) {
      // The numbers are drawn for what this machine has not, too: a seed is the same models everywhere.
      const int chunk = model.between(1, 70), ranks = model.between(2, 4), threads = model.between(1, 5);
      const bool left_out = model.between(0, 1) == 0;
      const bool slow = kMemoryIsSanitized && isa == "amx_emulated";  // minutes
      if (left_out || slow || !create_backend("cpu", {.isa = isa}).ok()) continue;
      SCOPED_TRACE(isa);
      const auto logits = [&](int tp, int n, int step) {
        return model.logits("cpu", {.tp = tp, .threads = n, .isa = isa}, step);
      };
      const std::vector<float> whole = logits(1, 2, 512);
      EXPECT_LT(distance(whole, reference).rms, 0.1);
      EXPECT_TRUE(logits(1, threads, chunk) == whole) << "chunks of " << chunk;
      const std::vector<float> shared = logits(ranks, ranks, chunk);
      EXPECT_TRUE(shared.empty() || shared == whole) << ranks << " ranks";
      ranks_compared += shared.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(ranks_compared, 0);
}

}  // namespace
}  // namespace moesaic
