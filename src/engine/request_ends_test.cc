// Ends of requests, and the pages that cancelling frees.
#include "engine/small_model_test.h"

namespace moesaic {
namespace {

class RequestEnds : public SmallModelTest {};

TEST_P(RequestEnds, EndsForEveryReason) {
  Engine e = engine(1, 100);
  const auto full = e.submit(prompt(90, 1), {}, quiet()).value();
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(full->finish, FinishReason::kLength);
  EXPECT_EQ(full->tokens.size(), 100u);
  const auto greedy = e.submit(prompt(10, 2), {.temperature = 0, .max_tokens = 3}, quiet()).value();
  ASSERT_TRUE(e.run_to_end().ok());
  std::vector<bool> stops;
  const auto stop = e.submit(prompt(10, 2), {.temperature = 0, .stop_tokens = {greedy->tokens[11]}},
                             [&](const SampledToken& t) { stops.push_back(t.is_stop); })
                        .value();
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(stops, (std::vector<bool>{false, true}));
  EXPECT_EQ(stop->finish, FinishReason::kStop);
  EXPECT_EQ(stop->generated(), 1);
  std::stop_source cancel;
  const auto cancelled =
      e.submit(
           prompt(10, 2), {}, [&](const SampledToken&) { cancel.request_stop(); }, cancel.get_token())
          .value();
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(cancelled->finish, FinishReason::kCancelled);
  EXPECT_EQ(cancelled->generated(), 1);
}

TEST_P(RequestEnds, WhatIsCancelledBetweenStepsIsNotComputedFurther) {
  Engine e = engine(1);
  std::stop_source cancel;
  const auto r = e.submit(prompt(200, 1), {}, quiet(), cancel.get_token()).value();
  ASSERT_TRUE(e.step().ok());
  cancel.request_stop();
  ASSERT_TRUE(e.step().ok());
  EXPECT_EQ(r->finish, FinishReason::kCancelled);
  EXPECT_EQ(r->computed, 64);  // the first step's rows
  EXPECT_TRUE(e.idle());
}

TEST_P(RequestEnds, CancellingFreesPagesAtOnce) {
  Engine e = Engine::create(*backend_, config_, {.context = 256, .max_batch = 4, .max_rows = 64}).value();
  std::stop_source cancel;
  std::vector<std::shared_ptr<Request>> requests;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto token = i < 3 ? cancel.get_token() : std::stop_token();
    requests.push_back(e.submit(prompt(60, i), {.max_tokens = 100}, quiet(), token).value());
  }
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(e.step().ok());
  const EngineStats before = e.stats();
  EXPECT_EQ(before.running, 4);
  cancel.request_stop();
  ASSERT_TRUE(e.step().ok());
  EXPECT_EQ(e.stats().running, 1);
  EXPECT_LE(e.stats().full.used, before.full.used / 4 + 1);
  EXPECT_GT(e.stats().full.cached, before.full.cached);
  ASSERT_TRUE(e.run_to_end().ok());
  EXPECT_EQ(requests[3]->generated(), 100);
}

INSTANTIATE_TEST_SUITE_P(Backends, RequestEnds, kHostBackends, backend_name);

}  // namespace
}  // namespace moesaic
