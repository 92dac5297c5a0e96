#include "core/batch.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/draft_batch.h"

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

// Like good_batch(), but both sequences are sampled: the second goes on from a draft of two tokens.
Batch continued_batch() {
  Batch b = good_batch();
  b.sampling.resize(2);
  b.continuations = {{.sequence = 1, .source = 0, .sampling = std::vector<DeviceSampling>(3)}};
  return b;
}

TEST(Batch, NamesWhatIsWrongWithAContinuation) {
  EXPECT_EQ(validate(continued_batch(), small_config(), kLayout, 4).message(), "");
  EXPECT_EQ(most_moved(continued_batch(), 1), 2);
  EXPECT_EQ(most_moved(continued_batch(), 0), 0);
  struct Case {
    const char* message;
    std::function<void(Batch&)> spoil;
  };
  const Case cases[] = {
      {"not sampled", [](Batch& b) { b.sampling.clear(); }},
      {"as 2 after -1, of 2", [](Batch& b) { b.continuations[0].sequence = 2; }},
      {"as -1 after -1", [](Batch& b) { b.continuations[0].sequence = -1; }},
      {"as 1 after 1", [](Batch& b) { b.continuations.push_back(b.continuations[0]); }},
      {"sequence -1 as 1", [](Batch& b) { b.continuations[0].source = -1; }},
      {"3 rows, of which 1 give logits", [](Batch& b) { b.continuations[0].sequence = 0; }},
      {"1 give logits and 0 are sampled", [](Batch& b) { b.continuations[0].sampling.clear(); }},
      {"101 log-probabilities", [](Batch& b) { b.continuations[0].sampling[2].logprobs = 101; }},
      {"has 1 full pages, its 5 tokens need 2", [](Batch& b) { b.continuations[0].sampling.resize(5); }},
      {"may reach 65 tokens", [](Batch& b) { b.continuations[0].sampling.resize(65); }},
  };
  for (const Case& c : cases) {
    Batch b = continued_batch();
    c.spoil(b);
    const Status status = validate(b, small_config(), kLayout, 4);
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.message << ": " << status.message();
  }
}

// Five rows, the last three of which give logits: two are of a draft.
TEST(SequenceAhead, NamesWhatIsWrong) {
  Batch b;
  b.tokens = {1, 2, 3, 4, 5}, b.positions = {6, 7, 8, 9, 10};
  b.sequences = {{.first_row = 0, .rows = 5, .context = 11, .full_pages = {0, 1, 2, 3}}};
  b.logit_rows = {2, 3, 4};
  b.sampling.resize(3);
  b.continuations = {{.sequence = 0, .sampling = std::vector<DeviceSampling>(6)}};
  Eagle3Config head;
  head.vocab = 100;
  const SequenceAhead good{
      .next_tokens = {2, 3}, .drafts = 3, .sampling = std::vector<DeviceSampling>(6), .begin = 6};
  const auto message = [&](const SequenceAhead& d) {
    return validate(std::span(&d, 1), b, head, kLayout).message();
  };
  EXPECT_EQ(message(good), "");
  struct Case {
    const char* message;
    std::function<void(SequenceAhead&)> spoil;
  };
  const Case cases[] = {
      {"sequence 1 after", [](SequenceAhead& d) { d.sequence = 1; }},
      {"gives 3 next tokens for 5 rows", [](SequenceAhead& d) { d.next_tokens.push_back(1); }},
      {"token 100", [](SequenceAhead& d) { d.next_tokens[0] = 100; }},
      {"wants 17 drafts",
       [](SequenceAhead& d) { d.drafts = 17, d.sampling.clear(), d.full_pages = {0, 1, 2, 3, 4, 5, 6, 7}; }},
      {"sampling for 5 of its 6", [](SequenceAhead& d) { d.sampling.pop_back(); }},
      {"begins at 7", [](SequenceAhead& d) { d.begin = 7; }},
      {"has 3 pages, its 14 positions need 4",
       [](SequenceAhead& d) {
         d.full_pages = {0, 1, 2};
       }},
      {"page 3 is 10",
       [](SequenceAhead& d) {
         d.full_pages = {0, 1, 2, 10};
       }},
  };
  for (const Case& c : cases) {
    SequenceAhead d = good;
    c.spoil(d);
    EXPECT_NE(message(d).find(c.message), std::string::npos) << c.message << ": " << message(d);
  }
  b.logit_rows.clear(), b.sampling.clear(), b.continuations.clear();
  SequenceAhead none{.next_tokens = {2, 3, 4, 5, 6}};
  EXPECT_EQ(message(none), "");
  none.drafts = 1;
  EXPECT_NE(message(none).find("without logits"), std::string::npos);
  b.logit_rows = {4};
  EXPECT_NE(message(none).find("not sampled"), std::string::npos);
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
