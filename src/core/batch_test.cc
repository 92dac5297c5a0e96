#include "core/batch.h"

#include <gtest/gtest.h>

#include <functional>

namespace moesaic {
namespace {

ModelConfig small_config() {
  ModelConfig c = published_config("gpt-oss-20b").value();
  c.vocab = 100, c.window = 8, c.max_context = 64;
  return c;
}

constexpr KvLayout kLayout{.page_tokens = 4, .full_pages = 10, .window_pages = 5};

// Two sequences: one of 3 rows at the end of 20 tokens, one of a single token. The first row of the first
// stands at 17 and sees 10..17, so window pages 0 and 1 (positions 0..7) are gone.
Batch good_batch() {
  Batch b;
  b.tokens = {1, 2, 3, 99};
  b.positions = {17, 18, 19, 0};
  b.sequences = {{.first_row = 0,
                  .rows = 3,
                  .context = 20,
                  .full_pages = {0, 1, 2, 3, 4},
                  .window_pages = {-1, -1, 2, 3, 4}},
                 {.first_row = 3, .rows = 1, .context = 1, .full_pages = {9}, .window_pages = {0}}};
  b.logit_rows = {2, 3};
  return b;
}

TEST(Batch, AcceptsAGoodOne) {
  const Status status = validate(good_batch(), small_config(), kLayout, 4);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Batch, NamesEachViolation) {
  struct Case {
    const char* message;
    std::function<void(Batch&)> spoil;
  };
  const Case cases[] = {
      {"0 rows", [](Batch& b) { b = {}; }},
      {"3 positions", [](Batch& b) { b.positions.pop_back(); }},
      {"token 100", [](Batch& b) { b.tokens[1] = 100; }},
      {"token -1", [](Batch& b) { b.tokens[0] = -1; }},
      {"position 16", [](Batch& b) { b.positions[0] = 16; }},
      {"position -2147483648", [](Batch& b) { b.positions[3] = INT32_MIN; }},
      {"1 of its 4 rows belong to no sequence", [](Batch& b) { b.sequences.pop_back(); }},
      {"rows 2 + 1", [](Batch& b) { b.sequences[1].first_row = 2; }},
      {"rows 3 + 2147483647", [](Batch& b) { b.sequences[1].rows = INT32_MAX; }},
      {"rows 3 + 0", [](Batch& b) { b.sequences[1].rows = 0; }},
      {"context of 2 tokens for 3 rows", [](Batch& b) { b.sequences[0].context = 2; }},
      {"context of 65 tokens", [](Batch& b) { b.sequences[0].context = 65; }},
      {"has 4 full pages", [](Batch& b) { b.sequences[0].full_pages.pop_back(); }},
      {"has 0 window pages", [](Batch& b) { b.sequences[1].window_pages.clear(); }},
      {"full page 1 is 10", [](Batch& b) { b.sequences[0].full_pages[1] = 10; }},
      {"full page 0 is -1", [](Batch& b) { b.sequences[0].full_pages[0] = -1; }},
      {"window page 2 is -1", [](Batch& b) { b.sequences[0].window_pages[2] = -1; }},
      {"logit row 4", [](Batch& b) { b.logit_rows[1] = 4; }},
      {"logit row 2 follows 2", [](Batch& b) { b.logit_rows[1] = 2; }},
      {"1 rows to sample, but 2", [](Batch& b) { b.sampling.resize(1); }},
      {"101 log-probabilities", [](Batch& b) { b.sampling.resize(2, {.logprobs = 101}); }},
  };
  for (const Case& c : cases) {
    Batch b = good_batch();
    c.spoil(b);
    const Status status = validate(b, small_config(), kLayout, 4);
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.message << ": " << status.message();
  }
  EXPECT_FALSE(validate(good_batch(), small_config(), kLayout, 3).ok());
}

TEST(Batch, OnlyThePoolsInUseNeedPages) {
  ModelConfig c = small_config();
  Batch b = good_batch();
  for (Sequence& s : b.sequences) s.window_pages.clear();
  c.sliding.assign(c.sliding.size(), false);
  EXPECT_TRUE(validate(b, c, kLayout, 4).ok());
}

TEST(KvLayout, Bounds) {
  EXPECT_TRUE(validate(kLayout).ok());
  EXPECT_FALSE(validate(KvLayout{.page_tokens = 0}).ok());
  EXPECT_FALSE(validate(KvLayout{.page_tokens = 32, .full_pages = -1}).ok());
}

}  // namespace
}  // namespace moesaic
