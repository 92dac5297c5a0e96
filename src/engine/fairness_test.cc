// Several clients in one engine: none shuts another out, and nobody's tokens change.
#include <map>
#include <random>
#include <string>

#include "engine/late_backend.h"

namespace moesaic {
namespace {

constexpr int kContext = 2000;

SamplingParams tokens(int most, uint64_t seed = 0) { return {.seed = seed, .max_tokens = most}; }

struct Clients : Harness {
  using Harness::Harness;

  size_t submit_as(const std::string& name, int prompt_tokens, const SamplingParams& params) {
    client = name;
    submit(prompt_tokens, params);
    return requests.size() - 1;
  }
  void step() {
    ASSERT_EQ(engine.step().message(), "");
    engine.scheduler().check();
  }
  // Steps until the request has so many tokens.
  int steps_to(size_t request, size_t count) {
    int steps = 0;
    for (; received[request].size() < count && !testing::Test::HasFatalFailure(); ++steps) step();
    return steps;
  }
  bool waits(const Request& r) const { return !r.done() && r.pages.full.empty(); }
  int running(const std::string& name) const {
    int count = 0;
    for (const auto& r : requests) count += r->client == name && !r->done() && !waits(*r) ? 1 : 0;
    return count;
  }
  // Each request got what it gets alone, as far as it came.
  void expect_the_tokens_of_each_alone() const {
    Harness alone(false, {.context = kContext, .max_rows = 64});
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = *requests[i];
      const auto prompt = std::vector(r.tokens.begin(), r.tokens.begin() + r.prompt_tokens);
      SamplingParams params = r.params;
      params.max_tokens = static_cast<int>(received[i].size());
      if (params.max_tokens == 0) continue;
      alone.submit(prompt, params);
      ASSERT_TRUE(alone.engine.run_to_end().ok());
      EXPECT_EQ(received[i], alone.received.back()) << i;
    }
  }
};

// One client has 280 long streams. The first token of another's comes with the step that computes its
// prompt, a device that samples being one step ahead, and its streams get half of the places.
TEST(Fairness, ANewcomerBeginsAtOnce) {
  for (const bool samples : {false, true}) {
    Clients run(samples, {.context = kContext, .max_batch = 4, .max_rows = 64, .kv_tokens = 8000});
    for (int i = 0; i < 280; ++i) run.submit_as("a", 10, tokens(4000, i));
    run.steps_to(3, 20);
    EXPECT_EQ(run.running("a"), 4);
    const size_t first = run.submit_as("b", 30, tokens(50));
    EXPECT_LE(run.steps_to(first, 1), samples ? 3 : 1);
    EXPECT_EQ(run.running("a"), 3);
    for (int i = 0; i < 5; ++i) run.submit_as("b", 20 + i, tokens(50, i));
    run.step();
    EXPECT_EQ(run.running("a"), 2);
    EXPECT_EQ(run.running("b"), 2);
    run.steps_to(first + 5, 50);
    run.step();
    run.step();
    EXPECT_EQ(run.running("a"), 4);  // alone again, with everything
    for (auto& cancel : run.cancels) cancel.request_stop();
    run.step();
    run.expect_the_tokens_of_each_alone();
  }
}

TEST(Fairness, AClientAloneIsFirstComeFirstServed) {
  Clients run(false, {.context = kContext, .max_batch = 2, .max_rows = 64});
  for (int i = 0; i < 6; ++i) run.submit_as("a", 10, tokens(20, i));
  for (size_t i = 1; i < 6; ++i) {
    run.steps_to(i, 1);
    EXPECT_FALSE(run.received[i - 1].empty());
    EXPECT_EQ(run.engine.stats().preemptions, 0);
  }
}

// Where there are more clients than places, each gets its turn at the latest when those before it have had
// theirs.
TEST(Fairness, MoreClientsThanPlacesTakeTurns) {
  for (const int places : {1, 2}) {
    Clients run(places == 2, {.context = kContext, .max_batch = places, .max_rows = 64, .kv_tokens = 4000});
    for (int i = 0; i < 4; ++i)
      run.submit_as(std::string(1, static_cast<char>('a' + i)), 10, tokens(1500, i));
    run.steps_to(3, 1);
    EXPECT_LE(run.received[0].size(), (3 / places + 1) * (Scheduler::kTurn + 5u));
    for (size_t i = 0; i < 3; ++i)
      EXPECT_GE(run.received[i].size(), i + 1 < 4u - places ? 1u * Scheduler::kTurn : 1u);
    ASSERT_TRUE(run.engine.run_to_end().ok());
    for (const auto& received : run.received) EXPECT_EQ(received.size(), 1500);
    EXPECT_LE(run.engine.stats().preemptions, 4u * 1500 / Scheduler::kTurn + 4);
    run.expect_the_tokens_of_each_alone();
  }
}

// Pages are shared as places are: a long prompt gets those of streams beyond a client's share, but of nobody
// who has no other until that one's turn is over.
TEST(Fairness, ANewcomerGetsPages) {
  Clients run(false, {.context = kContext, .max_batch = 8, .max_rows = 64, .kv_tokens = 2048});
  for (int i = 0; i < 8; ++i) run.submit_as("a", 200, tokens(1700, i));
  run.steps_to(0, 10);
  const int before = run.running("a");
  EXPECT_GT(before, 4);
  const size_t half = run.submit_as("b", 1000, tokens(5));
  EXPECT_LE(run.steps_to(half, 1), 1000 / 56 + 2);
  EXPECT_LT(run.running("a"), before);
  EXPECT_GE(run.running("a"), 2);
  run.steps_to(half, 5);
  const size_t whole = run.submit_as("b", 1990, tokens(5));  // needs nearly all
  EXPECT_LE(run.steps_to(whole, 1), Scheduler::kTurn + 1990 / 56 + 2);
  for (auto& cancel : run.cancels) cancel.request_stop();
  run.step();
  run.expect_the_tokens_of_each_alone();
}

// Pages that a newcomer shares with those at work are not taken a second time.
TEST(Fairness, ANewcomerNeedsNoPageForWhatIsThere) {
  Clients run(false, {.context = kContext, .max_batch = 2, .max_rows = 64, .kv_tokens = 2048});
  run.submit_as("a", 1500, tokens(1));
  ASSERT_TRUE(run.engine.run_to_end().ok());
  for (int i = 0; i < 2; ++i) run.submit_as("a", 1500, tokens(400, i));
  run.steps_to(2, 3);
  const size_t same = run.submit_as("b", 1500, tokens(5));
  EXPECT_EQ(run.steps_to(same, 1), 1);
  EXPECT_EQ(run.running("a"), 1);
}

// The prompts of one client do not hold up another's: the rows that decoding leaves are given out by turns.
TEST(Fairness, PromptsTakeTurns) {
  Clients run(false, {.context = kContext, .max_batch = 8, .max_rows = 16, .kv_tokens = 16000});
  for (int i = 0; i < 4; ++i) run.submit_as("a", 1900 + i, tokens(2));
  run.step();
  const size_t small = run.submit_as("b", 30, tokens(3)), large = run.submit_as("c", 160, tokens(3));
  EXPECT_LE(run.steps_to(small, 1), 6);   // 2 steps of its own, as many of the two others
  EXPECT_LE(run.steps_to(large, 1), 26);  // 10 of its own
  EXPECT_TRUE(run.received[0].empty());
  ASSERT_TRUE(run.engine.run_to_end().ok());
  run.expect_the_tokens_of_each_alone();
}

// With pages for all, no client has two places more than one that waits. With few, each that waits gets a
// place when the others have had their turn.
TEST(Fairness, RandomClientsGetTheirShares) {
  uint64_t preemptions = 0;
  for (uint32_t seed = 0; seed < 12 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    const bool roomy = below(2) == 0;
    const int places = 1 + below(6);
    Clients run(below(2) == 0, {.context = 600,
                                .max_batch = places,
                                .max_rows = 64,
                                .kv_tokens = roomy ? 600 * places : 600 + below(600)});
    int unequal_steps = 0;
    std::map<std::string, int> passed;  // steps in which a client had only waiting requests
    for (int i = 0; i < 60; ++i) {
      const std::string name(1, static_cast<char>('a' + below(2) * below(8)));  // one has most
      run.submit_as(name, 1 + below(300), tokens(1 + below(300), i));
      for (int steps = below(40); steps > 0; --steps) {
        run.step();
        int most = 0;
        for (char c = 'a'; c < 'i'; ++c) most = std::max(most, run.running(std::string(1, c)));
        const bool unequal = std::ranges::any_of(
            run.requests, [&](const auto& r) { return run.waits(*r) && most > run.running(r->client) + 1; });
        // A request may have ended with the step, and one that yields begins again when its token is taken.
        unequal_steps = roomy && unequal ? unequal_steps + 1 : 0;
        ASSERT_LE(unequal_steps, 2) << seed;
        for (char c = 'a'; c < 'i'; ++c) {
          const std::string name_of(1, c);
          const bool only_waits =
              run.running(name_of) == 0 && std::ranges::any_of(run.requests, [&](auto& r) {
                return r->client == name_of && run.waits(*r);
              });
          passed[name_of] = only_waits ? passed[name_of] + 1 : 0;
          ASSERT_LE(passed[name_of], 8 * (Scheduler::kTurn + 20)) << seed;
        }
      }
    }
    ASSERT_TRUE(run.engine.run_to_end().ok());
    preemptions += run.engine.stats().preemptions;
    for (const auto& r : run.requests) EXPECT_EQ(r->finish, FinishReason::kLength);
    run.expect_the_tokens_of_each_alone();
  }
  EXPECT_GT(preemptions, 100u);
}

// A callback that throws ends everybody's requests, and loses none with its pages.
TEST(Fairness, CallbacksThatThrowLeaveNothing) {
  int thrown = 0;
  for (uint32_t seed = 0; seed < 30 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    Clients run(below(2) == 0, {.context = 300, .max_batch = 1 + below(4), .max_rows = 64, .kv_tokens = 400});
    const auto throws = [&](unsigned of) {
      if (below(of) == 0) throw std::runtime_error("a callback");
    };
    const auto step = [&] {
      try {
        ASSERT_EQ(run.engine.step().message(), "");
        run.engine.scheduler().check();
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    };
    for (int i = 0; i < 40; ++i) {
      auto r = run.engine.prepare(std::vector<int32_t>(1 + below(200), i), tokens(1 + below(40), i),
                                  [](const SampledToken&) {});
      ASSERT_TRUE(r.ok());
      r.value()->client = std::string(1, static_cast<char>('a' + below(4)));
      r.value()->on_begin = [&] { throws(10); };
      r.value()->on_prompt = [&, told = -1](int read) mutable {
        EXPECT_GT(read, told);
        told = read;
        throws(30);
      };
      run.requests.push_back(r.value());
      run.engine.add(r.value());
      for (int steps = below(5); steps > 0; --steps) step();
    }
    for (int steps = 0; !run.engine.idle(); ++steps) {
      step();
      ASSERT_LT(steps, 20000) << seed;
    }
    for (const auto& r : run.requests) EXPECT_TRUE(r->done()) << seed;
    EXPECT_EQ(run.engine.scheduler().stats().full.used, 0) << seed;
    EXPECT_EQ(run.engine.scheduler().stats().clients, 0) << seed;
  }
  EXPECT_GT(thrown, 30);
}

}  // namespace
}  // namespace moesaic
