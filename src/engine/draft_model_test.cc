// A draft model has places for the requests that run, whoever waits.
#include "drafting/model_drafter.h"
#include "engine/late_backend.h"

namespace moesaic {
namespace {

constexpr int64_t kTokens = 416;  // the cache has so many, and so has the draft model's

// Two requests at a time, with a draft model that is always right.
struct Drafted : Harness {
  Drafted() : Harness(false, {.context = 400, .max_batch = 2, .max_rows = 64, .kv_tokens = kTokens}) {
    auto model = std::make_unique<LateBackend>(false);
    EXPECT_TRUE(model->load(config, {}, {}).ok());
    engine.speculate(
        ModelDrafter::create(std::move(model), config, {.sequences = 2, .kv_tokens = kTokens, .max_rows = 64})
            .value(),
        4);
  }
};

TEST(DraftModel, DraftsForARequestWhileAnotherHasYielded) {
  Drafted run, alone;
  for (int i = 0; i < 2; ++i) run.submit(20 + i, {.temperature = 0});
  alone.submit(20, {.temperature = 0});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  ASSERT_TRUE(alone.engine.run_to_end().ok());
  EXPECT_GT(run.engine.stats().preemptions, 0u);
  EXPECT_EQ(run.received[0], alone.received[0]);
  EXPECT_GE(run.requests[0]->drafted.stats.accepted, alone.requests[0]->drafted.stats.accepted * 9 / 10);
}

}  // namespace
}  // namespace moesaic
