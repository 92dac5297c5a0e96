#include "engine/kv_layout.h"

#include <gtest/gtest.h>

#include "backend/idle_backend.h"

namespace moesaic {
namespace {

ModelConfig config() {
  return {.name = "test",
          .layers = 3,
          .kv_heads = 2,
          .head_dim = 32,
          .window = 128,
          .sliding = {true, false, true},
          .max_context = 1 << 20};
}

TEST(KvLayout, CountsPages) {
  const KvLayout one = kv_layout(config(), {.context = 33, .max_rows = 512}).value();
  EXPECT_EQ(one.full_pages, 2);
  EXPECT_EQ(one.window_pages, 2);  // never more than the whole context
  const KvLayout many = kv_layout(config(), {.sequences = 3, .context = 6400, .max_rows = 64}).value();
  EXPECT_EQ(many.full_pages, 3 * 200);
  EXPECT_EQ(many.window_pages, 3 * (4 + 2) + 2);
  const KvLayout shared =
      kv_layout(config(),
                {.sequences = 3, .context = 6400, .max_rows = 64, .kv_tokens = 8000, .prefix_cache = true})
          .value();
  EXPECT_EQ(shared.full_pages, 250);
  EXPECT_EQ(shared.window_pages, 20 + 3 * 32);
  const KvLayout crowd = kv_layout(config(), {.sequences = 500,
                                              .context = 6400,
                                              .max_rows = 500,
                                              .kv_tokens = 256'000,
                                              .prefix_cache = true,
                                              .logit_rows = 500})
                             .value();
  EXPECT_EQ(crowd.window_pages, 500 * 6 + 16 + 8000 / 4);
  EXPECT_EQ(crowd.logit_rows, 500);
  const KvLayout large =
      kv_layout(config(), {.sequences = 3, .context = 6400, .max_rows = 64, .prefix_cache = true}).value();
  EXPECT_EQ(large.window_pages, 20 + 600 / 4);
}

TEST(KvLayout, AbsurdSizesAreErrors) {
  EXPECT_FALSE(kv_layout(config(), {.sequences = 0, .context = 1}).ok());
  EXPECT_FALSE(kv_layout(config(), {.context = 0}).ok());
  EXPECT_FALSE(kv_layout(config(), {.sequences = 1 << 30, .context = 1 << 20}).ok());
  EXPECT_FALSE(kv_layout(config(), {.sequences = 4, .context = 64, .kv_tokens = int64_t{1} << 60}).ok());
}

TEST(KvLayout, MemoryIsWhatTheBackendKeeps) {
  const auto cpu = create_backend("cpu", {.threads = 1}).value();
  const auto reference = create_backend("reference", {}).value();
  const KvLayout layout{.page_tokens = 32, .full_pages = 10, .window_pages = 4};
  const double tokens = 32 * (10 + 2 * 4);
  EXPECT_EQ(kv_bytes(layout, config(), *reference), tokens * 2 * 64 * 4);           // F32
  EXPECT_EQ(kv_bytes(layout, config(), *cpu), tokens * (64 + 2 * 64 + 2 * 2 * 4));  // int8, int16, scales
  EXPECT_TRUE(check_kv_memory(layout, config(), *cpu).ok());
  const Status status = check_kv_memory({.page_tokens = 32, .full_pages = 2000000000}, config(), *cpu);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
}

// A device of a given size; 1 KB a token and layer.
class Device final : public IdleBackend {
 public:
  explicit Device(double free) : free_(free) {}
  BackendCaps caps() const override { return {.name = "toy:0", .batch = 512}; }
  std::vector<MemoryPart> memory(const ModelConfig& c, const ModelWeights& w, const KvLayout& l) override {
    const StoredBytes stored = stored_bytes(w);
    return {{kExpertsPart, 1e8},
            {kHeadPart, stored.head},
            {kProjectionsPart, stored.projections},
            {kCachePart, kv_bytes(l, c, *this), MemoryKind::kCache},
            {"logits", 4.0 * l.logit_rows * c.vocab, MemoryKind::kWorkspace}};
  }
  double available_memory() const override { return free_; }

 private:
  double free_;
};

ModelWeights shapes(Format dense) {
  const MatrixView m = dense_view(dense, 6400, 6400, nullptr);
  ModelWeights w{.head = m};
  w.layers.resize(3);
  for (LayerWeights& l : w.layers) l.q = l.k = l.v = l.o = m;
  return w;
}

bool says(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST(PlanMemory, RefusesBeforeLoadingAndSaysWhatWouldFit) {
  const ModelWeights mxfp8 = shapes(Format::kMxfp8);
  const double weights = 1e8 + 13 * 6400 * 6400 * 8.25 / 8;
  Device large(weights + 3 * 1024 * 4096);
  EXPECT_TRUE(plan_memory({.context = 4096}, config(), mxfp8, large).ok());

  Device tight(weights + 1024 * (1024 + 2 * 704));  // 1024 tokens in the full layer
  const Status refused = plan_memory({.context = 4096, .max_rows = 512}, config(), mxfp8, tight);
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
  for (const char* part : {"experts 0.10", "lm_head 0.04", "attention projections 0.51", "KV cache",
                           "toy:0 has", "use at most 1024 tokens of context"})
    EXPECT_TRUE(says(refused, part)) << part << ": " << refused.message();
  EXPECT_FALSE(says(refused, "--dense")) << refused.message();

  // Half of what the weights leave free, but a context at least and a context for each at most.
  const KvDemand many{.sequences = 8, .context = 1024, .max_rows = 512};
  const double windows = 2 * (8 * (4 + 2) * 32 + 512);  // tokens, in two layers
  Device shared(weights + 2 * 1024 * (3100 + windows)), ample(weights + 2 * 1024 * (8192 + windows));
  EXPECT_EQ(fitting_kv_tokens(many, config(), mxfp8, shared), 96 * 32);
  EXPECT_EQ(fitting_kv_tokens(many, config(), mxfp8, ample), 8 * 1024);
  EXPECT_EQ(fitting_kv_tokens(many, config(), mxfp8, tight), 1024);

  const Status large_cache = plan_memory({.sequences = 8, .context = 512, .max_rows = 64, .kv_tokens = 64000},
                                         config(), mxfp8, shared);
  for (const char* part : {"test with a KV cache of 64000 tokens takes", "tokens of KV cache"})
    EXPECT_TRUE(says(large_cache, part)) << large_cache.message();

  // A context that nobody gave: the model's, or what nine tenths of the memory beside the weights hold.
  const double all = (1 << 20) + 2 * (6 * 32 + 512);  // tokens in three layers, windows in two of them
  Device roomy(weights + 1024 * all / 0.89);
  const KvDemand any{.max_rows = 512};
  const ContextChoice model = fitting_context(any, config(), mxfp8, roomy);
  EXPECT_EQ(std::pair(model.tokens, model.limit), std::pair(1 << 20, ContextLimit::kModel));
  const ContextChoice cache = fitting_context({.max_rows = 512, .kv_tokens = 5000}, config(), mxfp8, roomy);
  EXPECT_EQ(std::pair(cache.tokens, cache.limit), std::pair(5000, ContextLimit::kCache));
  Device half(weights + 1024 * ((1 << 19) + 2 * (6 * 32 + 512) + 8) / 0.9);
  const ContextChoice memory = fitting_context(any, config(), mxfp8, half);
  EXPECT_EQ(std::pair(memory.tokens, memory.limit), std::pair(1 << 19, ContextLimit::kMemory));
  EXPECT_TRUE(plan_memory({.context = memory.tokens, .max_rows = 512}, config(), mxfp8, half).ok());

  Device small(1e6);
  EXPECT_EQ(fitting_context(any, config(), mxfp8, small).tokens, 32);
  EXPECT_TRUE(says(plan_memory({.context = 64}, config(), mxfp8, small), "smaller model"));
  EXPECT_TRUE(says(plan_memory({.context = 4096}, config(), shapes(Format::kBF16), large),
                   "--dense mxfp8, which saves 0.52 GB"));
}

// A window's tokens (and two pages more) in three layers and a row of logits for each, in a quarter of the
// memory beside the weights.
TEST(FittingBatch, IsWhatPaysOrFits) {
  const ModelWeights mxfp8 = shapes(Format::kMxfp8);
  const double weights = 1e8 + 13 * 6400 * 6400 * 8.25 / 8, step = 1024 * 2 * 512;
  ModelConfig c = config();
  c.vocab = 1000;
  const double each = 1024 * 3 * (128 + 64) + 4 * 1000;
  const KvDemand any{.max_rows = 512};
  const auto batch = [&](double rest, const KvDemand& demand) {
    Device device(weights + rest);
    return fitting_batch(demand, c, mxfp8, device);
  };
  EXPECT_EQ(batch(4 * (512 * each + step) + 1, any), 512);
  EXPECT_EQ(batch(1e12, any), 512);
  EXPECT_EQ(batch(1e12, {.max_rows = 64}), 64);
  EXPECT_EQ(batch(4 * (100.5 * each), any), 100);
  EXPECT_EQ(batch(1000, any), 1);
  EXPECT_EQ(batch(-1e9, any), 1);
}

// A drafter's memory is planned like the model's own weights and cache.
TEST(PlanMemory, CountsTheDrafter) {
  const ModelWeights mxfp8 = shapes(Format::kMxfp8);
  const double weights = 1e8 + 13 * 6400 * 6400 * 8.25 / 8, windows = 2 * (6 * 32 + 512);
  const DraftMemory draft{.weights = 2e8, .token_bytes = 2048};
  KvDemand demand{.context = 4096, .max_rows = 512, .draft = draft};
  Device exact(weights + 2e8 + 1024 * (3 * 4096 + windows)),
      tight(weights + 2e8 + 1024 * (3 * 1024 + windows));
  EXPECT_TRUE(plan_memory(demand, config(), mxfp8, exact).ok());
  const Status refused = plan_memory(demand, config(), mxfp8, tight);
  for (const char* part : {"drafter 0.20", "drafter's KV cache", "use at most 1024 tokens of context"})
    EXPECT_TRUE(says(refused, part)) << part << ": " << refused.message();
  demand.context = 0;
  Device half(weights + 2e8 + 1024 * (3 * 4096 + windows) / 0.899);
  EXPECT_EQ(fitting_context(demand, config(), mxfp8, half).tokens, 4096);
  const KvLayout layout = kv_layout(config(), {.context = 4096, .max_rows = 512}).value();
  Device loaded(1024 * (3 * 4096 + windows)), full(1024 * (3 * 4096 + windows) - 1);
  EXPECT_TRUE(check_kv_memory(layout, config(), loaded, draft).ok());
  EXPECT_FALSE(check_kv_memory(layout, config(), full, draft).ok());
}

}  // namespace
}  // namespace moesaic
