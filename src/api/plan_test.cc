// The choices where nothing was asked for, on devices of any size; and the words of errors.
#include <gtest/gtest.h>

#include <cstdlib>

#include "api/bundled_model.h"
#include "api/model_parts.h"
#include "api/option_words.h"
#include "backend/idle_backend.h"

namespace moesaic {
namespace {

// A GPU with so much memory, of which only the size is asked.
class Gpu final : public IdleBackend {
 public:
  explicit Gpu(double free) : free_(free) {}
  BackendCaps caps() const override { return {.name = "cuda:0 (toy)", .batch = 512, .cache_share = 0.9}; }
  DeviceInfo device() const override { return {.name = "cuda:0", .backend = "cuda"}; }
  double available_memory() const override { return free_; }

 private:
  double free_;
};

Checkpoint tiny() { return open_checkpoint(MOESAIC_SOURCE_DIR "/models/tiny").value(); }

TEST(PlanEngine, AutoTakesTheCpuWhereTheGpuIsTooSmall) {
  const Checkpoint checkpoint = tiny();
  for (const char* device : {"auto", "cuda"}) {
    std::unique_ptr<Backend> backend = std::make_unique<Gpu>(1000);
    BackendOptions options{.threads = 1};
    options.gpu_memory = 1e9;
    const auto plan =
        plan_engine(checkpoint, {.context = 4096}, {.device = device, .options = options}, backend);
    EXPECT_EQ(plan.ok(), device == std::string("auto")) << plan.status().message();
    if (!plan.ok()) continue;
    EXPECT_EQ(backend->device().backend, "cpu");
    EXPECT_EQ(plan->info.device.name, "cpu");
    EXPECT_TRUE(plan->info.device_reason.starts_with("no GPU is usable: ")) << plan->info.device_reason;
    EXPECT_NE(plan->info.device_reason.find("cuda:0 (toy) has 0.00 GB free"), std::string::npos);
  }
}

TEST(PlanEngine, ADeviceWithoutDraftHeadsRefusesThem) {
  const Checkpoint checkpoint = tiny();
  DraftParts drafts =
      DraftParts::open(std::string("eagle3:") + MOESAIC_SOURCE_DIR "/models/tiny-eagle3", checkpoint).value();
  std::unique_ptr<Backend> backend = std::make_unique<Gpu>(1e12);
  const auto plan = plan_engine(checkpoint, {}, {.device = "cuda", .options = {}}, backend, &drafts);
  EXPECT_EQ(plan.status().code(), StatusCode::kUsage);
  EXPECT_NE(plan.status().message().find("cannot run draft heads"), std::string::npos);
  backend = create_backend("cpu", {.threads = 1}).value();
  const auto with = plan_engine(checkpoint, {.context = 1024}, {.device = "cpu", .options = {}}, backend,
                                &drafts),
             without = plan_engine(checkpoint, {.context = 1024}, {.device = "cpu", .options = {}}, backend);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(describe(with->info).back(),
            "speculative decoding: " + drafts.name() + ", drafts of as many as pay tokens");
  // The file's 1.95 MB with 8.5 bits in place of 16, and 2 heads of 64 as 8- and 16-bit integers with scales.
  EXPECT_NEAR(static_cast<double>(with->info.memory.sum() - without->info.memory.sum()),
              1.95e6 * 8.5 / 16 + 1024 * 2 * (3 * 64 + 8), 1e5);
}

TEST(PlanEngine, AGpuThatIsLargeEnoughIsKept) {
  const Checkpoint checkpoint = tiny();
  std::unique_ptr<Backend> backend = std::make_unique<Gpu>(1e12);
  const auto plan = plan_engine(checkpoint, {.max_batch = 4}, {.device = "auto", .options = {}}, backend);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->info.device_reason, "the first usable");
  EXPECT_EQ(plan->info.context, 131072);
  EXPECT_EQ(plan->info.kv_tokens, 4 * 131072);
  EXPECT_EQ(plan->info.kv_reason, "a context for each of max_batch");
  const std::vector<std::string> lines = describe(plan->info);
  EXPECT_EQ(lines.front(), "device cuda:0:; the first usable");
  EXPECT_EQ(lines.back(), "speculative decoding: none");
  EXPECT_EQ(lines.at(lines.size() - 3), "batch at most 4 requests: asked for; steps of at most 512 tokens");
  EXPECT_EQ(lines.at(lines.size() - 2),
            "KV cache 524288 tokens for all requests: a context for each of max_batch");
}

// Nobody says how many requests, nor how many rows a step has.
TEST(PlanEngine, ABatchThatPaysOrFits) {
  const Checkpoint checkpoint = tiny();
  std::unique_ptr<Backend> backend = std::make_unique<Gpu>(1e10);
  const EngineOptions any{.max_batch = 0, .max_rows = 0};
  auto plan = plan_engine(checkpoint, any, {.device = "cuda", .options = {}}, backend);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->info.max_batch, 512);
  EXPECT_EQ(plan->info.batch_reason, "as many as pay on this device");
  EXPECT_EQ(plan->info.max_rows, 2048);
  EXPECT_EQ(plan->info.kv_reason, "90% of the free memory");
  EXPECT_EQ(plan->demand.logit_rows, 512 + Scheduler::kHostRows);
  EXPECT_TRUE(Engine::create(*backend, checkpoint.config, plan->options).ok());

  backend = std::make_unique<Gpu>(20e6);
  plan = plan_engine(checkpoint, any, {.device = "cuda", .options = {}}, backend);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->info.batch_reason, "memory");
  EXPECT_GE(plan->info.max_batch, 1);
  EXPECT_LT(plan->info.max_batch, 512);
  EXPECT_TRUE(Engine::create(*backend, checkpoint.config, plan->options).ok());

  backend = create_backend("cpu", {.threads = 1, .max_rows = 0}).value();
  plan = plan_engine(checkpoint, any, {.device = "cpu", .options = {}}, backend);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->info.max_batch, 32);
  EXPECT_EQ(plan->info.max_rows, kHostPrefillRows);
}

TEST(Describe, MemoryIsToldByWhatItIsFor) {
  ModelInfo info{.memory = {.weights = 11'500'000, .kv_cache = 4'200'000'000}};
  EXPECT_EQ(describe(info).at(1), "memory: weights 11.5 MB, KV cache 4.20 GB; unknown free");
  info.memory.workspace = 1'000'000;
  info.measured = "measured now";
  info.device.memory_free = 999'000'000;
  EXPECT_EQ(describe(info).at(1),
            "memory: weights 11.5 MB, KV cache 4.20 GB, workspace 1.0 MB; 999.0 MB free");
  EXPECT_EQ(describe(info).back(), "measured now");
}

TEST(PlanEngine, AContextThatTheMemoryTakes) {
  const Checkpoint checkpoint = tiny();
  std::unique_ptr<Backend> backend = std::make_unique<Gpu>(50e6);
  const auto plan = plan_engine(checkpoint, {.max_batch = 2}, {.device = "cuda", .options = {}}, backend);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->info.context_reason, "memory");
  EXPECT_LT(plan->info.context, 131072);
  EXPECT_GT(plan->info.context, 1000);
  EXPECT_EQ(plan->info.kv_reason, "one context");
  EXPECT_GE(plan->info.kv_tokens, plan->info.context);
}

// Between plan and cache the memory may become less: what nobody asked for then becomes less, too.
TEST(PlanEngine, ChoosesAgainWhereLessIsFreeThanPlanned) {
  const Checkpoint checkpoint = tiny();
  for (const EngineOptions& wanted :
       {EngineOptions{}, EngineOptions{.max_batch = 4}, EngineOptions{.context = 1024, .max_batch = 64}}) {
    std::unique_ptr<Backend> backend = std::make_unique<Gpu>(1e9);
    auto plan = plan_engine(checkpoint, wanted, {.device = "cuda", .options = {}}, backend);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const EnginePlan before = plan.value();
    ASSERT_TRUE(fit_again(plan.value(), checkpoint, *backend).ok());
    EXPECT_EQ(plan->info.kv_tokens, before.info.kv_tokens);  // nothing has changed
    Gpu smaller(30e6);
    ASSERT_TRUE(fit_again(plan.value(), checkpoint, smaller).ok());
    EXPECT_LT(plan->info.kv_tokens, before.info.kv_tokens);
    EXPECT_EQ(plan->info.context_reason, wanted.context == 0 ? "memory" : "asked for");
    EXPECT_LT(plan->info.memory.kv_cache, before.info.memory.kv_cache);
    EXPECT_EQ(plan->info.memory.weights, before.info.memory.weights);
    EXPECT_TRUE(Engine::create(smaller, checkpoint.config, plan->options).ok());
  }
  // A size that was asked for stays, and is refused where it does not fit.
  std::unique_ptr<Backend> backend = std::make_unique<Gpu>(1e9);
  auto plan = plan_engine(checkpoint, {.context = 131072}, {.device = "cuda", .options = {}}, backend);
  Gpu smaller(30e6);
  ASSERT_TRUE(fit_again(plan.value(), checkpoint, smaller).ok());
  EXPECT_EQ(plan->info.context, 131072);
  EXPECT_EQ(Engine::create(smaller, checkpoint.config, plan->options).status().code(),
            StatusCode::kOutOfMemory);
}

TEST(OptionWords, FlagsBecomeFields) {
  EXPECT_EQ(option_words("use --dense mxfp8 or --device cpu"),
            "use options.dense mxfp8 or options.device cpu");
  EXPECT_EQ(option_words("(--ctx), --ctxt, --dense-er"), "(options.context), --ctxt, --dense-er");
  EXPECT_EQ(option_words("--kv-tokens --kv-tokens"), "options.kv_tokens options.kv_tokens");
}

TEST(BundledModel, TinyIsItsName) {
  const std::string models = MOESAIC_SOURCE_DIR "/models";
  setenv("MOESAIC_MODELS", models.c_str(), 1);
  EXPECT_EQ(model_path("tiny").value(), models + "/tiny");
  EXPECT_TRUE(Model::open("tiny", {.device = "cpu", .threads = 1, .context = 64}).ok());
  EXPECT_FALSE(Model::open("", {.device = "cpu"}).ok());
  unsetenv("MOESAIC_MODELS");
}

}  // namespace
}  // namespace moesaic
