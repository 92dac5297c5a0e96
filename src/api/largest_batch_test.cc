// The largest batch at the largest context that a plan admits: the steps that it leads to must fit into what
// was planned, since a device that has to allocate beside them has no memory left.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "api/model_parts.h"
#include "backend/idle_backend.h"

namespace moesaic {
namespace {

constexpr int kMostRows = 2048;

// A GPU with so much memory that samples, always the same token. It has room for the cache and the logits
// that it was told of, and its memory is used up by them.
class FullGpu final : public IdleBackend {
 public:
  FullGpu(double free, const ModelConfig& config) : free_(free), config_(config) {}
  BackendCaps caps() const override {
    return {
        .name = "full", .max_rows = kMostRows, .mixed_rows = kMixedRows, .batch = 512, .cache_share = 0.9};
  }
  DeviceInfo device() const override { return {.name = "cuda:0", .backend = "cuda"}; }
  double available_memory() const override { return free_; }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights&,
                                 const KvLayout& layout) override {
    return {{kCachePart, kv_bytes(layout, config, *this), MemoryKind::kCache},
            {"logits", 4.0 * layout.logit_rows * config.vocab, MemoryKind::kWorkspace}};
  }
  Status alloc_kv(const KvLayout& layout) override {
    layout_ = layout;
    return {};
  }
  bool can_sample() const override { return true; }
  Status begin_step(const Batch& batch) override {
    const Status valid = validate(batch, config_, layout_, kMostRows);
    EXPECT_TRUE(valid.ok()) << valid.message();
    const int wanted = static_cast<int>(batch.logit_rows.size());
    EXPECT_LE(wanted, layout_.logit_rows) << "rows whose logits nobody counted";
    most_wanted_ = std::max(most_wanted_, wanted);
    most_rows_ = std::max(most_rows_, batch.rows());
    for (const Sequence& s : batch.sequences) longest_ = std::max(longest_, s.context);
    if (!batch.sampling.empty()) steps_.push_back(wanted);
    return {};
  }
  void unembed(std::span<float> logits) override { choose(logits); }
  Status sampled(std::span<SampledToken> tokens, std::span<float> logits) override {
    EXPECT_EQ(std::ssize(tokens), steps_.front());
    steps_.pop_front();
    std::ranges::fill(tokens, SampledToken{.token = kToken});
    choose(logits);
    return {};
  }

  static constexpr int32_t kToken = 7;
  static constexpr int kMixedRows = 40;
  int most_wanted_ = 0, most_rows_ = 0, longest_ = 0;
  KvLayout layout_;

 private:
  void choose(std::span<float> logits) const {
    std::ranges::fill(logits, 0.0f);
    for (size_t row = 0; row < logits.size(); row += static_cast<size_t>(config_.vocab))
      logits[row + kToken] = 1;
  }

  double free_;
  ModelConfig config_;
  std::deque<int> steps_;  // in flight: their logit rows
};

class LargestBatch : public testing::Test {
 protected:
  // Opens the model like a server that is told nothing but the drafter.
  void open(const std::string& speculative, double free = 700e6) {
    auto gpu = std::make_unique<FullGpu>(free, checkpoint_.config);
    gpu_ = gpu.get(), backend_ = std::move(gpu);
    DraftParts drafts = DraftParts::open(speculative, checkpoint_).value();
    const EngineOptions any{.max_batch = 0, .max_rows = 0};
    auto plan = plan_engine(checkpoint_, any, {.device = "cuda", .options = {}}, backend_, &drafts);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = plan.value();
    auto drafter = drafts.drafter(*backend_, plan_.options).value();
    engine_.emplace(Engine::create(*backend_, checkpoint_.config, plan_.options, std::move(drafter)).value());
  }
  std::shared_ptr<Request> submit(int prompt, const SamplingParams& params, bool shows = false) {
    auto request = engine_
                       ->prepare(std::vector<int32_t>(static_cast<size_t>(prompt), FullGpu::kToken), params,
                                 [](const SampledToken&) {})
                       .value();
    request->reuse_prefix = !shows;
    if (shows) request->on_prompt_logits = [](int, std::span<const float>) {};
    engine_->add(request);
    return requests_.emplace_back(request);
  }
  void run() {
    const Status status = engine_->run_to_end();
    EXPECT_TRUE(status.ok()) << status.message();
    for (const auto& request : requests_) EXPECT_EQ(request->finish, FinishReason::kLength);
  }

  Checkpoint checkpoint_ = open_checkpoint(MOESAIC_SOURCE_DIR "/models/tiny").value();
  FullGpu* gpu_ = nullptr;
  std::unique_ptr<Backend> backend_;
  EnginePlan plan_;
  std::optional<Engine> engine_;
  std::vector<std::shared_ptr<Request>> requests_;
};

TEST_F(LargestBatch, FitsWithRowsForTheHost) {
  open("none");
  const int batch = plan_.info.max_batch;
  ASSERT_GT(batch, 50);
  for (int i = 0; i < batch; ++i) {
    // Some have a token of theirs chosen by the host, and some show the logits of their prompts beside them.
    const bool host = i % 5 == 0;
    submit(i % 7 == 6 ? 40 : 1 + i % 3, {.frequency_penalty = host ? 0.1 : 0, .max_tokens = 60}, i % 7 == 6);
  }
  run();
  EXPECT_GE(gpu_->most_wanted_, batch) << "no step had them all";
}

// Its device would rather have fewer rows in a step in which requests decode.
TEST_F(LargestBatch, LeavesAPromptRowsBesideIt) {
  open("none");
  const int batch = plan_.info.max_batch;
  ASSERT_GT(batch, FullGpu::kMixedRows);
  EXPECT_EQ(plan_.info.mixed_rows, batch + kPageTokens);
  for (int i = 0; i < batch - 1; ++i) submit(1, {.max_tokens = 20});
  const auto last = submit(100, {.max_tokens = 1});
  for (int steps = 0; steps < 8 && !last->done(); ++steps) ASSERT_TRUE(engine_->step().ok());
  EXPECT_TRUE(last->done());
  run();
}

TEST_F(LargestBatch, FitsWithPromptsThatAreShown) {
  open("none");
  const int batch = plan_.info.max_batch;
  for (int i = 0; i < batch - 4; ++i) submit(1, {.max_tokens = 100});
  for (int i = 0; i < 4; ++i) submit(300, {.max_tokens = 2}, true);
  run();
  EXPECT_GT(gpu_->most_wanted_, batch) << "no prompt was shown beside all others";
}

TEST_F(LargestBatch, FitsWithDrafts) {
  open("ngram");
  const int batch = plan_.info.max_batch;
  ASSERT_GT(batch, 50);
  for (int i = 0; i < batch; ++i) submit(20, {.max_tokens = 40});
  run();
  EXPECT_GT(gpu_->most_wanted_, batch) << "no draft was verified beside all others";
}

// With a vocabulary of the size that gpt-oss has, logits may be a large part of what is beside the weights.
TEST_F(LargestBatch, IsPlannedForAnySizeOfMemory) {
  checkpoint_.config.vocab = 201'088;
  double free = 500e6;
  while (free < 20e9) {
    for (const char* speculative : {"none", "ngram"}) open(speculative, free);
    // Some of it is gone once the weights are loaded.
    FullGpu less(0.95 * free, checkpoint_.config);
    const Status again = fit_again(plan_, checkpoint_, less);
    ASSERT_TRUE(again.ok()) << again.message();
    const KvLayout layout = kv_layout(checkpoint_.config, plan_.demand).value();
    EXPECT_LE(bytes_of(less.memory(checkpoint_.config, {}, layout)), 0.95 * free) << free;
    free *= 1.1;
  }
}

TEST_F(LargestBatch, TakesTheLargestContextToo) {
  for (const char* speculative : {"none", "ngram"}) {
    open(speculative);
    requests_.clear();
    const int context = plan_.info.context;
    EXPECT_LT(context, checkpoint_.config.max_context) << "memory is no bound";
    submit(context - 10, {});
    for (int i = 1; i < plan_.info.max_batch; ++i) submit(2, {.max_tokens = 20});
    run();
    EXPECT_EQ(gpu_->most_rows_, plan_.info.max_rows);
    EXPECT_GE(gpu_->longest_, context - 1);
  }
}

// The test's own power: a step with more rows than were counted is seen.
TEST_F(LargestBatch, ASmallerPlanIsSeen) {
  open("none");
  gpu_->layout_.logit_rows = 10;
  for (int i = 0; i < 20; ++i) submit(1, {.max_tokens = 1});
  EXPECT_NONFATAL_FAILURE(run(), "rows whose logits nobody counted");
}

}  // namespace
}  // namespace moesaic
