// Shared by the tests of ranks: a load of requests, and its answers.
#pragma once

#include "api/embedding_test.h"

namespace moesaic {

struct Answers {
  std::vector<Record> records;
  EngineStats stats;
};

// Requests with beginnings in common, sampled and greedy, more of them than there are places and pages for.
inline Answers answers(Model& model, int requests, int prompt, int tokens) {
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

inline void expect_equal(const Answers& got, const Answers& expected) {
  for (size_t i = 0; i < got.records.size(); ++i) {
    const Record &a = got.records[i], &b = expected.records[i];
    EXPECT_EQ(a.tokens, b.tokens) << i;
    ASSERT_EQ(a.sampled.size(), b.sampled.size()) << i;
    for (size_t t = 0; t < a.sampled.size(); ++t)
      EXPECT_EQ(a.sampled[t].logprobs, b.sampled[t].logprobs) << i;
  }
}

}  // namespace moesaic
