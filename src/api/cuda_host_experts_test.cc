// Experts in host memory beside a GPU: what a model answers is what it answers with all of them on the GPU.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "api/ranks_test.h"
#include "backend/backend.h"
#include "backend/host_placement.h"
#include "base/relative_error_test.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "model/small_config_test.h"

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
    for (const char* experts : {"host:1,stream:never", "host,stream:never", "host,stream:9"}) {
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

// Experts of gpt-oss's own size, which on Hopper are slabs, in a model of three layers.
class CudaStreamedExperts : public CudaHostExperts {
 protected:
  static constexpr int kLayers = 3, kMaxRows = 512, kTokens = 2000;
  static constexpr int kNever = ExpertPlacement::kNever;
  struct Kernels {
    const char* name;
    bool portable;
    MoePath path;
  };

  std::unique_ptr<Backend> load(int host_layers, int stream_rows, const Kernels& kernels, int hot = 0) const {
    auto made = create_backend(
        "cuda", {.moe_path = kernels.path,
                 .portable = kernels.portable,
                 .max_rows = kMaxRows,
                 .tune = false,
                 .experts = {.host_layers = host_layers, .stream_rows = stream_rows, .hot = hot}});
    EXPECT_EQ(made.status().message(), "");
    EXPECT_EQ(made.value()->load(config_, weights(), {}).message(), "");
    const int pages = kTokens / 32 + 1;
    EXPECT_EQ(made.value()
                  ->alloc_kv({.full_pages = pages, .window_pages = pages, .logit_rows = kMaxRows})
                  .message(),
              "");
    return std::move(made).value();
  }
  // Returns all logits of one sequence that comes in steps of so many rows.
  std::vector<float> logits(Backend& backend, const std::vector<int>& steps) const {
    std::vector<int32_t> pages(kTokens / 32 + 1);
    std::iota(pages.begin(), pages.end(), 0);
    std::vector<float> all;
    int context = 0;
    for (const int rows : steps) {
      Batch batch{.sequences = {
                      {.rows = rows, .context = context + rows, .full_pages = pages, .window_pages = pages}}};
      for (int i = 0; i < rows; ++i) {
        batch.tokens.push_back((7 * context + 13 * i) % config_.vocab);
        batch.positions.push_back(context + i), batch.logit_rows.push_back(i);
      }
      context += rows;
      std::vector<float> part(static_cast<size_t>(rows) * static_cast<size_t>(config_.vocab));
      EXPECT_EQ(forward(backend, config_, batch, part).message(), "");
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  static constexpr Kernels kKernels[] = {{"this GPU's", false, MoePath::kAuto},
                                         {"every GPU's", true, MoePath::kAuto},
                                         {"w4a8", false, MoePath::kW4A8}};
  // Seconds to make: once for all tests.
  const ModelWeights& weights() const {
    static const ModelWeights all = make_random_model(config_, {.seed = 3});
    return all;
  }
  const ModelConfig config_ = [] {
    ModelConfig c = small_config(kLayers);
    c.hidden = c.intermediate = 2880;
    c.heads = 8, c.head_dim = 64, c.experts = 8, c.vocab = 500, c.max_context = 4096;
    return c;
  }();
};

// Says where logits are not those expected; empty where all are.
std::string difference(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return fmt::format("{} logits instead of {}", got.size(), want.size());
  size_t count = 0, first = 0;
  for (size_t i = got.size(); i-- > 0;) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) ++count, first = i;
  }
  if (count == 0) return {};
  return fmt::format("{} of {} logits differ, first the {}th, {} instead of {}", count, want.size(), first,
                     got[first], want[first]);
}

// A kernel that reads what is being written does so once in thousands of launches.
TEST_F(CudaStreamedExperts, HaveTheSameBitsEachTime) {
  const std::vector<int> steps = {9, 24, 100, 512, 33, 33};
  for (const Kernels& kernels : kKernels) {
    const auto gpu = load(0, kNever, kernels);
    const std::vector<float> want = logits(*gpu, steps);
    for (int round = 0; round < 150; ++round)
      ASSERT_EQ(difference(logits(*gpu, steps), want), "") << kernels.name << ", round " << round;
  }
}

// The GPU computes with what came to it: bit for bit as with what it has.
TEST_F(CudaStreamedExperts, GiveTheBitsOfExpertsOnTheGpu) {
  const std::vector<int> steps = {9, 24, 100, 512, 512, 33, 300};
  for (const Kernels& kernels : kKernels) {
    const std::vector<float> want = logits(*load(0, kNever, kernels), steps);
    for (int layers = 1; layers <= kLayers; ++layers) {
      const auto host = load(layers, 9, kernels);
      for (int round = 0; round < 3; ++round)
        EXPECT_EQ(difference(logits(*host, steps), want), "")
            << kernels.name << ", " << layers << " layers, round " << round;
    }
  }
}

// Prompts that the GPU computes and tokens that the CPU computes, in turn.
TEST_F(CudaStreamedExperts, TakeTurnsWithTheCpu) {
  const std::vector<int> steps = {100, 1, 1, 1, 40, 1, 8, 1, 200, 1, 1, 9, 1};
  for (const Kernels& kernels : kKernels) {
    const std::vector<float> want = logits(*load(0, kNever, kernels), steps);
    const auto host = load(2, 9, kernels);
    const std::vector<float> got = logits(*host, steps);
    std::printf("%s kernels: %.4f apart\n", kernels.name, relative_error(got, want));
    EXPECT_LT(relative_error(got, want), 0.05) << kernels.name;
    EXPECT_GT(relative_error(got, want), 0) << kernels.name;
    EXPECT_EQ(logits(*host, steps), got) << kernels.name;
  }
}

// Some experts on the GPU beside the CPU's, exchanged as they are chosen: near the GPU's own answer all the
// time, and with all of them there nearer than any 8-bit activations would be.
TEST_F(CudaStreamedExperts, HotOnesAreTheGpus) {
  std::vector<int> steps(400, 1);
  for (size_t i = 0; i < steps.size(); i += 50) steps[i] = static_cast<int>(2 + i / 40);
  steps[20] = 300;
  for (const Kernels& kernels : kKernels) {
    const std::vector<float> want = logits(*load(0, kNever, kernels), steps);
    const double none = relative_error(logits(*load(2, kNever, kernels), steps), want);
    for (const int hot : {2, 5, 8}) {
      const auto host = load(2, 150, kernels, hot);
      for (int round = 0; round < 2; ++round) {
        const double apart = relative_error(logits(*host, steps), want);
        std::printf("%s kernels, %d of 8 hot: %.4f apart, without %.4f\n", kernels.name, hot, apart, none);
        EXPECT_LT(apart, hot == 8 ? none / 2 : 0.05);
      }
    }
  }
}

TEST_F(CudaStreamedExperts, TheBreakEvenIsMeasured) {
  const auto host = load(2, ExpertPlacement::kMeasured, kKernels[0]);
  std::printf("%s\n", host->caps().measured.c_str());
  EXPECT_NE(host->caps().measured.find("tokens or more bring experts to the GPU"), std::string::npos);
  logits(*host, {512, 1, 100});
}

TEST_F(CudaHostExperts, WithLittleGpuMemory) {
  constexpr double kGiBytes = 0.375;  // weights 12 MB, code and graphs 0.16 GB, KV cache and buffers the rest
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
  refused({.device = "cuda", .experts = "host,stream:0"}, "options.experts");
  refused({.device = "cuda", .batch_invariant = true, .experts = "host,stream:9"}, "stream:never");
}

}  // namespace
}  // namespace moesaic
