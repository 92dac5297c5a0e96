// Requests with different salts share nothing.
#include <string>

#include "engine/late_backend.h"

namespace moesaic {
namespace {

constexpr int kPrompt = 200;

Request& ask(Harness& run, const std::string& salt) {
  std::vector<int32_t> prompt(kPrompt);
  for (int i = 0; i < kPrompt; ++i) prompt[i] = i * i % kVocab;
  auto request =
      run.engine.prepare(prompt, {.seed = 3, .max_tokens = 20}, [](const SampledToken&) {}).value();
  request->pages.salt = salt;
  run.engine.add(request);
  run.requests.push_back(request);
  EXPECT_TRUE(run.engine.run_to_end().ok());
  run.engine.scheduler().check();
  return *run.requests.back();
}

TEST(CacheSalt, OnlyTheSameOneFindsWhatIsCached) {
  Harness run(false, {.context = 400, .max_rows = 64, .kv_tokens = 4000});
  const std::vector<int32_t> tokens = ask(run, "").tokens;
  EXPECT_EQ(ask(run, "").reused, 192);
  for (const std::string& salt : {std::string("a"), std::string("b"), std::string("a\0", 2)}) {
    const Request& first = ask(run, salt);
    EXPECT_EQ(first.reused, 0) << salt;
    EXPECT_EQ(first.tokens, tokens) << salt;
    EXPECT_EQ(ask(run, salt).reused, 192) << salt;
  }
  EXPECT_EQ(ask(run, "").reused, 192);
}

TEST(CacheSalt, APreemptedRequestKeepsIts) {
  Harness run(false, {.context = 128, .max_batch = 2, .max_rows = 64, .kv_tokens = 160});
  for (int i = 0; i < 2; ++i) {
    auto request =
        run.engine.prepare(std::vector<int32_t>(20 + i, 7), {.temperature = 0}, [](const SampledToken&) {})
            .value();
    request->pages.salt = "mine";
    run.engine.add(request);
  }
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_GT(run.engine.stats().preemptions, 0u);
  const KvState state = run.engine.kv_state(1);
  EXPECT_EQ(cached_prefix(state, std::vector<int32_t>(33, 7), ""), 0);
}

}  // namespace
}  // namespace moesaic
