// OpenOptions::tp: what two ranks answer is what one does, in the middle of everything else that an engine
// does.
#include "api/ranks_test.h"

#include "api/embedding_test.h"

namespace moesaic {
namespace {

class RanksOfAModel : public Embedding {};
INSTANTIATE_TEST_SUITE_P(Devices, RanksOfAModel, testing::Values("cpu", "reference"),
                         [](const auto& i) { return std::string(i.param); });

TEST_P(RanksOfAModel, AnswerAsOneDoes) {
  const int requests = slow() ? 2 : 64, prompt = slow() ? 9 : 58, tokens = slow() ? 3 : 10;
  OpenOptions options{
      .threads = 2, .context = 128, .max_batch = slow() ? 3 : 8, .kv_tokens = slow() ? 0 : 256};
  options.speculative = "ngram", options.draft_tokens = 3;
  Model one = open(options);
  options.tp = 2;
  Model two = open(options);
  const Answers expected = answers(one, requests, prompt, tokens),
                got = answers(two, requests, prompt, tokens);
  expect_equal(got, expected);
  if (slow()) return;
  EXPECT_GT(got.stats.preemptions, 0u);
  EXPECT_GT(got.stats.prefix_hits, 0u);
  EXPECT_GT(got.stats.speculation.drafted, 0u);
}

TEST(RanksOptions, AreRefusedInOneLine) {
  const auto refusal = [](OpenOptions options) {
    options.device = "cpu", options.context = 256, options.tp = 2;
    return Model::open(kTiny, options).status().message();
  };
  EXPECT_NE(refusal({.speculative = "eagle3:" + std::string(kTiny) + "-eagle3"}).find("draft heads"),
            std::string::npos);
}

}  // namespace
}  // namespace moesaic
