// Experts in host memory beside a GPU: what a model answers is what it answers with all of them on the GPU.
#include <algorithm>

#include "api/ranks_test.h"
#include "backend/backend.h"

namespace moesaic {
namespace {

class CudaHostExperts : public testing::Test {
 protected:
  void SetUp() override {
    if (std::ranges::none_of(list_devices(),
                             [](const DeviceInfo& d) { return d.backend == "cuda" && d.usable; }))
      GTEST_SKIP() << "this machine has no usable GPU";
  }
  static Model open(const std::string& experts, double gpu_memory = 0, int max_batch = 8) {
    auto model = Model::open(kTiny, {.device = "cuda",
                                     .context = 2000,
                                     .max_batch = max_batch,
                                     .kv_tokens = 20000,
                                     .experts = experts,
                                     .gpu_memory = gpu_memory});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // Rounding to 8 bits changes log-probabilities a little, and a token only where two are nearly as likely.
  static void expect_alike(const Answers& got, const Answers& expected) {
    constexpr double kNear = 0.1;
    size_t equal = 0, all = 0;
    for (size_t i = 0; i < got.records.size(); ++i) {
      const Record &a = got.records[i], &b = expected.records[i];
      const size_t count = std::min(a.sampled.size(), b.sampled.size());
      all += b.sampled.size();
      for (size_t t = 0; t < count && a.tokens[t] == b.tokens[t]; ++t, ++equal)
        EXPECT_NEAR(a.sampled[t].logprobs.logprob, b.sampled[t].logprobs.logprob, kNear) << i << " " << t;
    }
    EXPECT_GT(equal * 10, all * 9) << equal << " of " << all << " tokens";
    std::printf("%zu of %zu tokens are the same\n", equal, all);
  }
};

TEST_F(CudaHostExperts, AnswerAsTheGpuDoes) {
  for (const auto& [requests, prompt, tokens] :
       {std::array{1, 40, 24}, {2, 33, 20}, {7, 50, 16}, {24, 200, 12}}) {
    Model gpu = open("gpu");
    const Answers expected = answers(gpu, requests, prompt, tokens);
    for (const char* experts : {"host:1", "host"}) {
      SCOPED_TRACE(testing::Message() << experts << ", " << requests << " requests");
      Model host = open(experts);
      EXPECT_NE(host.info().experts, "");
      expect_alike(answers(host, requests, prompt, tokens), expected);
    }
  }
}

// The same bits again, and from what the prefix cache has.
TEST_F(CudaHostExperts, AnswersAreTheSameAgain) {
  Model model = open("host", 0, 1);
  const Answers first = answers(model, 6, 120, 12), again = answers(model, 6, 120, 12);
  ASSERT_EQ(first.records.size(), again.records.size());
  for (size_t i = 0; i < first.records.size(); ++i)
    EXPECT_EQ(first.records[i].tokens, again.records[i].tokens) << i;
}

TEST_F(CudaHostExperts, WithLittleGpuMemory) {
  constexpr double kGiBytes = 0.25;  // tiny's weights take 12 MB, a step's buffers some more
  Model model = open("", kGiBytes);
  EXPECT_EQ(model.info().experts, "");
  const auto none = Model::open(kTiny, {.device = "cuda", .context = 2000, .gpu_memory = 0.001});
  EXPECT_EQ(none.status().code(), StatusCode::kOutOfMemory) << none.status().message();
}

TEST_F(CudaHostExperts, WhatCannotBeIsRefused) {
  const auto refused = [](const OpenOptions& o, const char* words) {
    const auto model = Model::open(kTiny, o);
    EXPECT_NE(model.status().message().find(words), std::string::npos) << model.status().message();
  };
  refused({.device = "cuda", .tp = 2, .experts = "host"}, "options.tp");
  refused({.device = "cpu", .gpu_memory = 4}, "options.gpu_memory");
  refused({.device = "cuda", .experts = "host:x"}, "options.experts");
}

}  // namespace
}  // namespace moesaic
