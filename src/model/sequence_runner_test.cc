#include "model/sequence_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/idle_backend.h"
#include "model/random_model.h"

namespace moesaic {
namespace {

ModelConfig small_config() {
  return {.name = "small",
          .layers = 2,
          .hidden = 32,
          .intermediate = 32,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 32,
          .experts = 3,
          .experts_per_token = 2,
          .vocab = 40,
          .window = 16,
          .sliding = {true, false},
          .max_context = 512};
}

// Records the batches that it gets.
class Recorder final : public IdleBackend {
 public:
  Status alloc_kv(const KvLayout& layout) override {
    layout_ = layout;
    return {};
  }
  Status begin_step(const Batch& batch) override {
    batches_.push_back(batch);
    return {};
  }

  KvLayout layout_;
  std::vector<Batch> batches_;
};

TEST(SequenceRunner, BatchesAreValidAndWindowPagesAreUsedInTurn) {
  const ModelConfig config = small_config();
  Recorder recorder;
  auto runner = SequenceRunner::create(recorder, config, {.max_tokens = 300, .chunk = 10, .page_tokens = 8});
  ASSERT_TRUE(runner.ok());
  EXPECT_EQ(recorder.layout_.full_pages, 38);
  EXPECT_EQ(recorder.layout_.window_pages, 5);  // 16 + 10 tokens, starting anywhere in a page
  const std::vector<int32_t> tokens(137, 1);
  std::vector<float> logits;
  ASSERT_TRUE(runner->append(tokens, SequenceRunner::Wanted::kLast, logits).ok());
  ASSERT_TRUE(runner->append(tokens, SequenceRunner::Wanted::kAll, logits).ok());
  EXPECT_EQ(logits.size(), 137u * 40);
  EXPECT_EQ(runner->length(), 274);
  size_t wanted = 0;
  for (const Batch& batch : recorder.batches_) {
    const Status status = validate(batch, config, recorder.layout_, 10);
    EXPECT_TRUE(status.ok()) << status.message();
    // The pages in a window are all different.
    std::vector<int32_t> live;
    for (const int32_t page : batch.sequences[0].window_pages)
      if (page >= 0) live.push_back(page);
    std::sort(live.begin(), live.end());
    EXPECT_EQ(std::unique(live.begin(), live.end()), live.end());
    wanted += batch.logit_rows.size();
  }
  EXPECT_EQ(wanted, 1u + 137u);
}

TEST(SequenceRunner, Limits) {
  Recorder recorder;
  const ModelConfig config = small_config();
  EXPECT_FALSE(SequenceRunner::create(recorder, config, {.max_tokens = 513}).ok());
  EXPECT_FALSE(SequenceRunner::create(recorder, config, {.max_tokens = 0}).ok());
  EXPECT_FALSE(SequenceRunner::create(recorder, config, {.max_tokens = 5, .chunk = 0}).ok());
  auto runner = SequenceRunner::create(recorder, config, {.max_tokens = 5});
  ASSERT_TRUE(runner.ok());
  std::vector<float> logits;
  const std::vector<int32_t> tokens(6, 1);
  EXPECT_FALSE(runner->append(tokens, SequenceRunner::Wanted::kNone, logits).ok());
  EXPECT_TRUE(runner->append({}, SequenceRunner::Wanted::kLast, logits).ok());
  EXPECT_TRUE(logits.empty());
}

TEST(RandomModel, EveryFormatIsAValidModelWithoutNans) {
  const ModelConfig config = small_config();
  for (const Format dense : {Format::kF32, Format::kF16, Format::kBF16, Format::kQ8_0, Format::kMxfp8}) {
    for (const Format experts : {Format::kMxfp4, Format::kMxfp4Gguf, Format::kBF16}) {
      const ModelWeights w = make_random_model(config, {.seed = 3, .dense = dense, .experts = experts});
      EXPECT_EQ(validate(w, config).message(), "");
      EXPECT_EQ(check_finite(w).message(), "");
    }
  }
}

// All expert formats hold the same numbers, and Q8_0 and MXFP8 stay near BF16's.
TEST(RandomModel, FormatsAgree) {
  const ModelConfig config = small_config();
  const ModelWeights exact = make_random_model(config, {.dense = Format::kF32});
  std::vector<float> want(32), got(32);
  for (const Format experts : {Format::kMxfp4Gguf, Format::kBF16}) {
    const ModelWeights other = make_random_model(config, {.experts = experts});
    for (int64_t row = 0; row < 32; ++row) {
      read_row(exact.layers[1].up.at(2), row, want);
      read_row(other.layers[1].up.at(2), row, got);
      EXPECT_EQ(got, want) << format_name(experts);
    }
  }
  for (const Format dense : {Format::kBF16, Format::kQ8_0, Format::kMxfp8}) {
    const ModelWeights other = make_random_model(config, {.dense = dense});
    for (int64_t row = 0; row < config.q_size(); ++row) {
      read_row(exact.layers[0].q, row, want);
      read_row(other.layers[0].q, row, got);
      const double largest = std::abs(*std::max_element(
          want.begin(), want.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
      // The F16 scale of Q8_0 may be off by 2^-11: 127 times that of a step.
      const double step = dense == Format::kBF16 ? 0 : dense == Format::kQ8_0 ? largest / 127 : largest / 8;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], (0.5 + 127 * 0x1p-11) * step) << format_name(dense);
    }
  }
}

TEST(RandomModel, DependsOnTheSeedOnly) {
  const ModelConfig config = small_config();
  std::vector<float> a(32), b(32), c(32);
  read_row(make_random_model(config, {.seed = 1}).embed, 7, a);
  read_row(make_random_model(config, {.seed = 1}).embed, 7, b);
  read_row(make_random_model(config, {.seed = 2}).embed, 7, c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(Argmax, FirstOfEquals) { EXPECT_EQ(argmax(std::vector<float>{-1, 4, 4, 2}), 1); }

}  // namespace
}  // namespace moesaic
