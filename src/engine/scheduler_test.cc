// Tests what the scheduler puts into each step, without an engine. The model always says 1.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

class SchedulerTest : public testing::Test {
 protected:
  // Pages of 4 tokens, a window of 8.
  void open(int full_pages, const Scheduler::Options& options) {
    scheduler_ = std::make_unique<Scheduler>(
        KvLayout{.page_tokens = 4, .full_pages = full_pages, .window_pages = 1000}, 8, options);
  }
  std::shared_ptr<Request> submit(int prompt, int tokens, const SamplingParams& params = {},
                                  const std::string& client = "") {
    auto r = std::make_shared<Request>();
    r->id = ++ids_;
    r->tokens.assign(static_cast<size_t>(prompt), static_cast<int32_t>(r->id));
    r->prompt_tokens = prompt, r->limit = prompt + tokens;
    r->params = params, r->client = client;
    r->sampler = std::make_unique<Sampler>(params, r->tokens);
    scheduler_->submit(r);
    return r;
  }
  // Rows of a request in a step.
  static int rows(const ScheduledBatch& step, const std::shared_ptr<Request>& request) {
    for (size_t i = 0; i < step.requests.size(); ++i) {
      if (step.requests[i] == request) return step.batch.sequences[i].rows;
    }
    return 0;
  }
  // The next step, and what comes of it where the host samples.
  ScheduledBatch step(bool device = false) {
    ScheduledBatch now = scheduler_->next_batch(device);
    for (const WantedRow& row : now.wanted) {
      Request& r = *row.request;
      if (row.prompt) {
        ++r.prompt_rows_shown;
      } else {
        r.tokens.push_back(1);
        if (std::ssize(r.tokens) == r.limit) r.finish = FinishReason::kLength;
      }
    }
    for (const auto& r : now.requests) scheduler_->end_step(*r);
    scheduler_->collect();
    scheduler_->check();
    return now;
  }

  uint64_t ids_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, DecodingComesFirstAndPromptsFillTheRows) {
  open(100, {.max_rows = 8, .max_batch = 4});
  const auto decodes = submit(3, 10);
  EXPECT_EQ(step().batch.rows(), 3);
  const auto prompt = submit(20, 2);
  for (const int of_prompt : {7, 7, 6}) {
    const ScheduledBatch now = step();
    EXPECT_EQ(now.requests.front(), decodes);
    EXPECT_EQ(rows(now, decodes), 1);
    EXPECT_EQ(rows(now, prompt), of_prompt);
    EXPECT_EQ(now.wanted.size(), of_prompt == 6 ? 2u : 1u) << "of the prompt its last row alone";
    EXPECT_EQ(now.batch.logit_rows.front(), 0);
  }
  EXPECT_EQ(prompt->generated(), 1);
  EXPECT_EQ(step().batch.rows(), 2);
  EXPECT_TRUE(prompt->done());
  EXPECT_EQ(step().batch.rows(), 1);
}

// A step in which a request decodes lasts as long however deep a prompt is.
TEST_F(SchedulerTest, ADeepPromptHasFewerRowsWhereOthersDecode) {
  constexpr int kRows = 256, kPrompt = 3000, kFewest = 32;
  open(10000, {.max_rows = kRows, .mixed_rows = kRows, .keys_as_row = kRows, .max_batch = 4});
  const auto decodes = submit(3, 200);
  step();
  const auto deep = submit(kPrompt, 2), second = submit(kPrompt, 2);
  bool fewest = false;
  while (deep->computed < kPrompt || second->computed < kPrompt) {
    double cost = 0;
    const int before[] = {deep->computed, second->computed};
    const ScheduledBatch now = step();
    EXPECT_EQ(rows(now, decodes), 1);
    int of_prompts = 0;
    for (const auto& [request, computed] : {std::pair{deep, before[0]}, {second, before[1]}}) {
      if (computed >= kPrompt) continue;  // it decodes
      cost += rows(now, request) * (1.0 + static_cast<double>(computed) / kRows);
      of_prompts += rows(now, request);
    }
    EXPECT_GT(of_prompts, 0);
    EXPECT_TRUE(cost <= kRows || of_prompts <= kFewest) << of_prompts << " rows cost " << cost;
    fewest |= of_prompts == kFewest;
  }
  EXPECT_TRUE(fewest);
  while (!scheduler_->idle()) step();
  const auto alone = submit(kPrompt, 1);
  for (int i = 0; i < kPrompt / kRows; ++i) EXPECT_EQ(rows(step(), alone), kRows);
}

// Nor do rows that verify a draft which was begun ahead leave a deep prompt more.
TEST_F(SchedulerTest, ADeepPromptHasNoMoreRowsBesideALongDraft) {
  constexpr int kRows = 256, kPrompt = 3000, kAhead = 100;
  open(10000, {.max_rows = 2 * kRows, .mixed_rows = kRows, .keys_as_row = kRows, .max_batch = 4});
  const auto decodes = submit(3, 900), deep = submit(kPrompt, 2);
  while (deep->computed < kPrompt / 2) step(true);
  scheduler_->next_batch(true);
  decodes->draft.begin_behind(kAhead);
  const int before = deep->computed;
  const ScheduledBatch now = scheduler_->next_batch(true);
  EXPECT_EQ(rows(now, decodes), 1 + kAhead);
  EXPECT_EQ(rows(now, deep), static_cast<int>(kRows / (1.0 + static_cast<double>(before) / kRows)));
}

TEST_F(SchedulerTest, RequestsWaitForAPlace) {
  open(100, {.max_rows = 8, .max_batch = 2});
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(submit(2, 2));
  ScheduledBatch now = step();
  EXPECT_EQ(now.requests.size(), 2u);
  EXPECT_EQ(rows(now, requests[2]), 0);
  EXPECT_EQ(scheduler_->stats().running, 2);
  EXPECT_EQ(scheduler_->stats().waiting, 1);
  step();
  now = step();
  EXPECT_EQ(rows(now, requests[2]), 2);
  step();
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(scheduler_->stats().full.used, 0);
  EXPECT_EQ(step().batch.rows(), 0);
}

// Where pages are lacking the younger one waits, and is computed again from what the cache has not kept.
TEST_F(SchedulerTest, TheYoungerYieldsItsPages) {
  for (const bool cache : {false, true}) {
    open(8, {.max_rows = 32, .max_batch = 2, .prefix_cache = cache});
    const auto older = submit(8, 16), younger = submit(8, 16);
    bool yielded = false;
    for (int steps = 0; !scheduler_->idle(); ++steps) {
      ASSERT_LT(steps, 100);
      const ScheduledBatch now = step();
      EXPECT_TRUE(older->done() || rows(now, older) == 1 || steps == 0) << "the older one never waits";
      yielded |= rows(now, younger) == 0;
    }
    EXPECT_TRUE(yielded);
    EXPECT_EQ(older->restarts, 0);
    EXPECT_GE(younger->restarts, 1);
    EXPECT_EQ(scheduler_->stats().preemptions, static_cast<uint64_t>(younger->restarts));
    EXPECT_EQ(older->generated(), 16);
    EXPECT_EQ(younger->generated(), 16);
  }
}

// A request begins only if a page is left for each that runs.
TEST_F(SchedulerTest, ARequestBeginsWhereThePagesOfItsPromptAreFree) {
  open(6, {.max_rows = 64, .max_batch = 4});
  submit(12, 3);
  const auto second = submit(12, 2);
  EXPECT_EQ(rows(step(), second), 0);
  open(7, {.max_rows = 64, .max_batch = 4});
  submit(12, 3);
  const auto third = submit(12, 2);
  EXPECT_EQ(rows(step(), third), 12);
}

// A place that was just given up is not asked for again: nobody else yields for it.
TEST_F(SchedulerTest, OneYieldsToOneNewcomer) {
  open(1000, {.max_rows = 8, .max_batch = 2});
  const auto longest = submit(2, 2000, {}, "a"), other = submit(2, 2000, {}, "b");
  for (int steps = 0; steps < Scheduler::kTurn + 2; ++steps) step();  // both have had their turn
  const auto newcomer = submit(2, 10, {}, "c");
  const ScheduledBatch now = step();
  EXPECT_EQ(rows(now, longest), 0);
  EXPECT_EQ(rows(now, other), 1);
  EXPECT_EQ(rows(now, newcomer), 2);
  EXPECT_EQ(scheduler_->stats().preemptions, 1u);
}

// Rows for the host are few; requests take turns, and none gets more than others for long.
TEST_F(SchedulerTest, RequestsOfTheHostTakeTurns) {
  constexpr int kRequests = 150;
  open(1000, {.max_rows = 512, .max_batch = kRequests});
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < kRequests; ++i) requests.push_back(submit(1, 40, {.frequency_penalty = 0.5}));
  for (int i = 1; i <= 60; ++i) {
    const ScheduledBatch now = step(true);
    EXPECT_LE(std::ssize(now.wanted), Scheduler::kHostRows);
    const auto [least, most] =
        std::ranges::minmax(requests, {}, [](const auto& r) { return r->generated(); });
    EXPECT_LE(most->generated() - least->generated(), 3) << "after " << i << " steps";
  }
  EXPECT_GT(requests.front()->generated(), 60 * Scheduler::kHostRows / kRequests - 3);
}

TEST_F(SchedulerTest, PromptsThatAreShownTakeRowsForTheHost) {
  open(1000, {.max_rows = 512, .max_batch = 4});
  const auto shown = submit(200, 1);
  shown->on_prompt_logits = [](int, std::span<const float>) {};
  shown->reuse_prefix = false;
  int steps = 0, rows_shown = 0;
  for (; !shown->done() && steps < 10; ++steps) {
    const ScheduledBatch now = step();
    EXPECT_LE(std::ssize(now.wanted), Scheduler::kHostRows + 1);
    rows_shown += static_cast<int>(std::ranges::count_if(now.wanted, &WantedRow::prompt));
  }
  EXPECT_EQ(rows_shown, 199);
  EXPECT_EQ(steps, 4);
}

TEST_F(SchedulerTest, WhatPromptsShareIsComputedOnce) {
  open(100, {.max_rows = 64, .max_batch = 4});
  const auto first = submit(30, 2);
  while (!first->done()) step();
  ids_ = 0;  // the same prompt again
  const auto second = submit(30, 2);
  EXPECT_EQ(rows(step(), second), 2);
  EXPECT_EQ(second->reused, 28);
  const EngineStats stats = scheduler_->stats();
  EXPECT_EQ(stats.prompt_tokens, 60u);
  EXPECT_EQ(stats.prefix_queried, 60u);
  EXPECT_EQ(stats.prefix_hits, 28u);
  EXPECT_EQ(first->kept, 28);
  EXPECT_EQ(second->kept, 0);
}

TEST_F(SchedulerTest, CancelledAndFailedRequestsLeaveNothing) {
  open(100, {.max_rows = 64, .max_batch = 2});
  std::stop_source stop;
  const auto runs = submit(10, 50), waits = submit(10, 50), third = submit(10, 50);
  runs->cancel = third->cancel = stop.get_token();
  step();
  stop.request_stop();
  scheduler_->collect();
  scheduler_->check();
  EXPECT_EQ(runs->finish, FinishReason::kCancelled);
  EXPECT_EQ(third->finish, FinishReason::kCancelled) << "also of those that wait";
  EXPECT_EQ(scheduler_->stats().running + scheduler_->stats().waiting, 1);
  scheduler_->fail_all(Status(StatusCode::kInternal, "a fault"));
  scheduler_->collect();
  scheduler_->check();
  EXPECT_EQ(waits->finish, FinishReason::kError);
  EXPECT_EQ(waits->error.message(), "a fault");
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(scheduler_->stats().full.used, 0);
  step();
  EXPECT_EQ(scheduler_->stats().full.cached, 0) << "after a fault nobody knows what the pages hold";
}

}  // namespace
}  // namespace moesaic
