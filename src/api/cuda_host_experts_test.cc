// Experts in host memory beside a GPU: what a model answers is what it answers with all of them on the GPU.
#include <algorithm>
#include <cmath>
#include <cstdio>

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
  static Model open(const OpenOptions& options) {
    auto model = Model::open(kTiny, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  static Model open(const std::string& experts) {
    return open({.device = "cuda", .context = 2000, .max_batch = 8, .kv_tokens = 20000, .experts = experts});
  }
  // How far log-probabilities are apart where the same text stands before them.
  struct Distance {
    double sum = 0, most = 0;
    int count = 0, first = 0, same_first = 0;  // first: tokens of answers

    void add(const Answers& got, const Answers& expected) {
      for (size_t i = 0; i < got.records.size(); ++i) {
        const Record &a = got.records[i], &b = expected.records[i];
        const size_t tokens = std::min(a.sampled.size(), b.sampled.size());
        ++first, same_first += tokens > 0 && a.tokens[0] == b.tokens[0];
        for (size_t t = 0; t < tokens && a.tokens[t] == b.tokens[t]; ++t, ++count) {
          const double apart = std::abs(a.sampled[t].logprobs.logprob - b.sampled[t].logprobs.logprob);
          sum += apart, most = std::max(most, apart);
        }
      }
    }
  };
};

// The CPU rounds activations to 8 bits, which changes log-probabilities a little, and a token only where two
// are nearly as likely. tiny has many such places: its story goes on as on the cpu backend, with another
// name.
TEST_F(CudaHostExperts, AnswerAsTheGpuDoes) {
  Distance distance;
  for (const auto& [requests, prompt, tokens] :
       {std::array{1, 40, 24}, {2, 33, 20}, {7, 50, 16}, {24, 200, 12}}) {
    Model gpu = open("gpu");
    const Answers expected = answers(gpu, requests, prompt, tokens);
    for (const char* experts : {"host:1", "host"}) {
      Model host = open(experts);
      EXPECT_NE(host.info().experts, "");
      distance.add(answers(host, requests, prompt, tokens), expected);
    }
  }
  std::printf("%d tokens, %.3f apart, at most %.3f; %d of %d first tokens are the same\n", distance.count,
              distance.sum / distance.count, distance.most, distance.same_first, distance.first);
  EXPECT_GT(distance.count, 500);
  EXPECT_LT(distance.sum / distance.count, 0.04);
  EXPECT_LT(distance.most, 0.5);
  EXPECT_GT(distance.same_first * 10, distance.first * 8);
}

// Answers have the same bits again, also from the prefix cache, if the GPU's do not depend on the batch.
TEST_F(CudaHostExperts, AnswersAreTheSameAgain) {
  Model model = open({.device = "cuda",
                      .context = 2000,
                      .max_batch = 1,
                      .kv_tokens = 20000,
                      .batch_invariant = true,
                      .experts = "host"});
  const Answers first = answers(model, 6, 120, 12), again = answers(model, 6, 120, 12);
  ASSERT_EQ(first.records.size(), again.records.size());
  for (size_t i = 0; i < first.records.size(); ++i)
    EXPECT_EQ(first.records[i].tokens, again.records[i].tokens) << i;
}

TEST_F(CudaHostExperts, WithLittleGpuMemory) {
  constexpr double kGiBytes = 0.25;  // tiny's weights take 12 MB, a step's buffers some more
  Model model =
      open({.device = "cuda", .context = 2000, .max_batch = 8, .kv_tokens = 20000, .gpu_memory = kGiBytes});
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
