// OpenOptions::tp: what two ranks answer is what one does, in the middle of everything else that an engine
// does.
#include "api/embedding_test.h"

namespace moesaic {
namespace {

class RanksOfAModel : public Embedding {};
INSTANTIATE_TEST_SUITE_P(Devices, RanksOfAModel, testing::Values("cpu", "reference"),
                         [](const auto& i) { return std::string(i.param); });

struct Answers {
  std::vector<Record> records;
  EngineStats stats;
};

// Requests with beginnings in common, sampled and greedy, more of them than there are places and pages for.
Answers answers(Model& model, int requests, int prompt, int tokens) {
  Answers a{.records = std::vector<Record>(static_cast<size_t>(requests)), .stats = {}};
  for (int i = 0; i < requests; ++i) {
    std::vector<int32_t> text = tokens_of(prompt + i % 5, 1 + i % 3);
    text.push_back(i % 4), text.push_back(i % 4);
    GenerationRequest request = greedy(text, tokens + i % 7);
    if (i % 2 == 1) request.sampling.temperature = 0.9, request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.top_logprobs = 2;
    EXPECT_TRUE(model.submit(request, a.records[static_cast<size_t>(i)].callbacks()).ok());
  }
  EXPECT_TRUE(model.run().ok());
  a.stats = model.stats();
  return a;
}

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
  for (size_t i = 0; i < got.records.size(); ++i) {
    const Record &a = got.records[i], &b = expected.records[i];
    EXPECT_EQ(a.tokens, b.tokens) << i;
    ASSERT_EQ(a.sampled.size(), b.sampled.size()) << i;
    for (size_t t = 0; t < a.sampled.size(); ++t)
      EXPECT_EQ(a.sampled[t].logprobs, b.sampled[t].logprobs) << i;
  }
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
  EXPECT_NE(refusal({.kv_host = 0.01}).find("cannot be copied"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
