// Beginnings of prompts that are not computed again.
#include "engine/small_model_test.h"

namespace moesaic {
namespace {

class PrefixCache : public SmallModelTest {};

// Turns that go on from all of the one before, from its prompt alone (what followed is told otherwise), from
// less than that, and from the very same prompt. Long enough that windows leave pages behind.
TEST_P(PrefixCache, ThePrefixCacheChangesNoToken) {
  Engine caching = engine(1, 500);
  const auto ask = [&](Engine& e, const std::vector<int32_t>& tokens, int n) {
    auto r = e.submit(tokens, {.seed = 9, .max_tokens = n}, quiet()).value();
    EXPECT_TRUE(e.run_to_end().ok());
    e.scheduler().check();
    return r;
  };
  const auto extended = [&](std::vector<int32_t> tokens, size_t keep, int n) {
    tokens.resize(keep);
    const std::vector<int32_t> more = prompt(n, static_cast<uint32_t>(n));
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  };
  const std::vector<int32_t> whole = ask(caching, prompt(30, 1), 20)->tokens;
  struct Turn {
    std::vector<int32_t> prompt;
    int reused, tokens;
  };
  std::vector<Turn> turns = {{extended(whole, 50, 101), 32, 170}};
  turns.push_back({extended(turns[0].prompt, 151, 33), 128, 5});  // the prompt of the turn before and more
  turns.push_back({turns[1].prompt, 160, 5});                     // the same again
  turns.push_back({extended(turns[1].prompt, 120, 9), 96, 5});    // parts ways before the prompt's end
  turns.push_back({prompt(40, 77), 0, 5});                        // another conversation
  turns.push_back({extended(turns[4].prompt, 40, 1), 32, 5});
  std::vector<std::vector<int32_t>> got;
  for (const Turn& t : turns) {
    const auto r = ask(caching, t.prompt, t.tokens);
    EXPECT_EQ(r->reused, t.reused);
    got.push_back(r->tokens);
  }
  EXPECT_EQ(caching.stats().prefix_hits, 32u + 128 + 160 + 96 + 32);
  // One backend holds one engine's cache: the other engine's turns come afterwards, on a cache of its own.
  Engine fresh =
      Engine::create(*backend_, config_, {.context = 500, .max_rows = 64, .prefix_cache = false}).value();
  for (size_t i = 0; i < turns.size(); ++i)
    EXPECT_EQ(ask(fresh, turns[i].prompt, turns[i].tokens)->tokens, got[i]) << i;
  EXPECT_EQ(fresh.stats().prefix_hits, 0u);
}

// Two prompts depart from a third behind its first five pages, which the window has left there: the second
// shows that others part ways at this place, and its window is kept although the pool is short of them.
TEST_P(PrefixCache, WindowsAreKeptWherePromptsPart) {
  Engine e = engine(1, 512);
  const std::vector<int32_t> system = prompt(165, 1);
  const auto ask = [&](uint32_t seed) {
    std::vector<int32_t> tokens = system;
    const std::vector<int32_t> own = prompt(300, seed);
    tokens.insert(tokens.end(), own.begin(), own.end());
    const auto r = e.submit(tokens, {.max_tokens = 5}, quiet()).value();
    EXPECT_TRUE(e.run_to_end().ok());
    return r->reused;
  };
  ask(100);
  ask(101);
  for (uint32_t seed = 102; seed < 106; ++seed) EXPECT_EQ(ask(seed), 160) << seed;
}

INSTANTIATE_TEST_SUITE_P(Backends, PrefixCache, kHostBackends, backend_name);

}  // namespace
}  // namespace moesaic
