// A model on the cpu backend whose experts have no room in memory: the bits are those of one that has all of
// them.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "model/small_config_test.h"

namespace moesaic {
namespace {

std::unique_ptr<Backend> loaded(double share, const ModelConfig& config, const ModelWeights& weights) {
  auto backend = create_backend("cpu", {.threads = 2, .max_rows = 64}).value();
  EXPECT_TRUE(backend->hold_experts(share));
  EXPECT_EQ(backend->load(config, weights, {}).message(), "");
  EXPECT_EQ(backend->alloc_kv({.full_pages = 5, .window_pages = 5}).message(), "");
  return backend;
}

std::vector<float> logits_of(Backend& backend, const ModelConfig& config, int* context, int rows) {
  Sequence sequence{.rows = rows, .context = *context + rows, .full_pages = {3, 0, 4, 1, 2}};
  sequence.window_pages = sequence.full_pages;
  Batch batch{.sequences = {sequence}, .logit_rows = {rows - 1}};
  for (int i = 0; i < rows; ++i, ++*context)
    batch.tokens.push_back(*context * 37 % config.vocab), batch.positions.push_back(*context);
  std::vector<float> logits(static_cast<size_t>(config.vocab), NAN);
  EXPECT_EQ(forward(backend, config, batch, logits).message(), "");
  return logits;
}

TEST(HeldExperts, SameBitsAsInMemory) {
  const ModelConfig config = small_config(3);
  for (const Format experts : {Format::kMxfp4, Format::kBF16}) {
    const ModelWeights weights = make_random_model(config, {.experts = experts});
    const auto all = loaded(1, config, weights);
    EXPECT_EQ(all->caps().measured, "");
    for (const double share : {0.1, 0.5, 0.9}) {
      const auto part = loaded(share, config, weights), fresh = loaded(1, config, weights);
      EXPECT_NE(part->caps().measured.find("from the model's file"), std::string::npos);
      int a = 0, b = 0;
      for (const int rows : {20, 1, 2, 1, 1, 20, 1, 33, 1})
        EXPECT_EQ(logits_of(*part, config, &a, rows), logits_of(*fresh, config, &b, rows)) << share;
    }
  }
}

TEST(HeldExperts, CountAsWhatIsHeld) {
  const ModelConfig config = small_config(2);
  const ModelWeights weights = make_random_model(config, {});
  const auto backend = create_backend("cpu", {.threads = 1}).value();
  const auto experts = [&] { return backend->memory(config, weights, {}).front().bytes; };
  const double all = experts();
  ASSERT_TRUE(backend->hold_experts(0.5));
  EXPECT_NEAR(experts(), all / 2, 1);
}

// Ranks have a part of each expert, and reference reads all weights from the file anyway.
TEST(HeldExperts, OthersHoldAllOfThem) {
  EXPECT_FALSE(create_backend("reference", {}).value()->hold_experts(0.5));
  EXPECT_FALSE(create_backend("cpu", {.tp = 2}).value()->hold_experts(0.5));
}

}  // namespace
}  // namespace moesaic
