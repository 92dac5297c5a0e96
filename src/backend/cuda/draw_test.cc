// Tokens drawn on the device against the host's sampler, which sorts.
#include "backend/cuda/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/device.h"
#include "engine/sampler.h"

namespace moesaic::cuda {
namespace {

constexpr int kMaxRows = 16;

class DrawTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
    out_ = PinnedBuffer::allocate(2 * (1 + kMaxRows) * sizeof(int32_t)).value();
  }
  template <typename T>
  static DeviceBuffer upload(const std::vector<T>& values) {
    DeviceBuffer buffer = DeviceBuffer::allocate(values.size() * sizeof(T), "test").value();
    EXPECT_EQ(cudaMemcpy(buffer.as<T>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              0);
    return buffer;
  }
  // A token of every row; fault and turn are arbitrary.
  std::vector<int32_t> draw_rows(const std::vector<float>& logits, int vocab, const std::vector<Draw>& how) {
    const auto rows = static_cast<int>(how.size());
    const DeviceBuffer device_logits = upload(logits), device_how = upload(how);
    const DeviceBuffer numbers = upload(std::vector<int32_t>{77, 1}),
                       drawn = upload(std::vector<int32_t>(rows, -9));
    EXPECT_TRUE(draw({.logits = device_logits.as<float>(),
                      .rows = rows,
                      .vocab = vocab,
                      .how = device_how.as<Draw>(),
                      .fault = numbers.as<int>(),
                      .drawn = drawn.as<int32_t>(),
                      .out = out_.as<int32_t>(),
                      .turn = numbers.as<int32_t>() + 1,
                      .stride = kMaxRows},
                     nullptr)
                    .ok());
    std::vector<int32_t> tokens(rows);
    EXPECT_EQ(cudaMemcpy(tokens.data(), drawn.as<int32_t>(), rows * sizeof(int32_t), cudaMemcpyDeviceToHost),
              0);
    const int32_t* told = out_.as<int32_t>() + 1 + kMaxRows;
    EXPECT_EQ(told[0], 77);
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), told + 1));
    return tokens;
  }
  // Rows of other logits each, drawn on both sides with the same seeds.
  void expect_the_hosts_tokens(const SamplingParams& params, int vocab, float deviation, int draws) {
    std::mt19937 rng(static_cast<uint32_t>(vocab) + static_cast<uint32_t>(draws));
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> logits(static_cast<size_t>(vocab) * kMaxRows);
    for (float& v : logits) v = normal(rng);
    for (int n = 0; n < draws; n += kMaxRows) {
      std::vector<Draw> how;
      std::vector<int32_t> want;
      for (int row = 0; row < kMaxRows; ++row) {
        SamplingParams p = params;
        p.seed = static_cast<uint64_t>(n + row) * 7919 + 1;
        Sampler sampler(p, {});
        how.push_back(sampler.draw_elsewhere(0).value());
        std::vector<float> copy(logits.begin() + row * static_cast<int64_t>(vocab),
                                logits.begin() + (row + 1) * static_cast<int64_t>(vocab));
        want.push_back(sampler.sample(copy).value().token);
      }
      ASSERT_EQ(draw_rows(logits, vocab, how), want)
          << params.temperature << " " << params.top_k << " " << params.top_p << " " << params.min_p << " of "
          << vocab << ", deviation " << deviation;
    }
  }

  PinnedBuffer out_;
};

const SamplingParams kCases[] = {{.temperature = 0},
                                 {},
                                 {.temperature = 0.3},
                                 {.temperature = 3},
                                 {.top_k = 1},
                                 {.top_k = 40},
                                 {.top_k = 100000},
                                 {.top_p = 0.95},
                                 {.top_p = 0.5},
                                 {.top_p = 1e-9},
                                 {.top_p = 0.9999},
                                 {.min_p = 0.05},
                                 {.temperature = 0.7, .top_p = 0.9, .top_k = 50, .min_p = 0.02},
                                 {.top_p = 0.9, .min_p = 0.3},
                                 {.top_k = 20, .min_p = 0.3},
                                 {.temperature = 1.5, .top_p = 0.99, .top_k = 1000}};

TEST_F(DrawTest, TokensAreTheHostsForEveryVocabularyAndSpread) {
  for (const int vocab : {1, 31, 300, 5001, 201088}) {
    for (const float deviation : {0.05f, 2.0f, 8.0f}) {
      for (const SamplingParams& p : kCases)
        expect_the_hosts_tokens(p, vocab, deviation, vocab > 10000 ? 16 : 96);
    }
  }
}

TEST_F(DrawTest, OfEqualsTheLowestId) {
  const int vocab = 201088;
  std::vector<float> logits(vocab, 1.5f);
  EXPECT_EQ(draw_rows(logits, vocab, {{}}), std::vector<int32_t>{0});
  std::fill_n(logits.begin(), 1000, 1.0f);
  EXPECT_EQ(draw_rows(logits, vocab, {{}}), std::vector<int32_t>{1000});
  logits = std::vector<float>(vocab, -0.0f);
  logits[70000] = 0.0f;
  EXPECT_EQ(draw_rows(logits, vocab, {{}}), std::vector<int32_t>{0});
  std::fill(logits.begin(), logits.end(), 1.5f);
  // The nucleus of equals is the lower half of the ids, the k likeliest the first k.
  EXPECT_EQ(draw_rows(logits, vocab, {{.temperature = 1, .top_p = 0.5, .uniform = 1 - 1e-12}}),
            std::vector<int32_t>{vocab / 2 - 1});
  EXPECT_EQ(draw_rows(logits, vocab, {{.temperature = 1, .uniform = 1 - 1e-12, .top_k = 777}}),
            std::vector<int32_t>{776});
}

TEST_F(DrawTest, WhatIsNotFiniteIsToldAndHarmsNoOtherRow) {
  const int vocab = 5000;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> logits(3 * vocab, 0.0f);
    logits[vocab + 4999] = bad;
    logits[2 * vocab + 7] = 1.0f;
    const Draw sampled{.temperature = 1, .top_p = 0.5};
    EXPECT_EQ(draw_rows(logits, vocab, {sampled, sampled, {}}), (std::vector<int32_t>{0, -1, 7}));
  }
}

// Twelve tokens, 64,000 draws: the frequencies are those of the filtered distribution.
TEST_F(DrawTest, FrequenciesMatchTheDistribution) {
  const int vocab = 12, draws = 64000;
  std::vector<float> row;
  for (int i = 0; i < vocab; ++i) row.push_back(static_cast<float>((i * 7) % vocab) * 0.5f);
  std::vector<float> logits;
  for (int i = 0; i < kMaxRows; ++i) logits.insert(logits.end(), row.begin(), row.end());
  std::vector<double> want(vocab), got(vocab);
  double total = 0;
  for (int i = 0; i < vocab; ++i) total += row[i] >= 2.5f ? std::exp(row[i]) : 0;  // the 7 likeliest
  for (int i = 0; i < vocab; ++i) want[i] = row[i] >= 2.5f ? std::exp(row[i]) / total : 0;
  std::mt19937_64 rng(5);
  for (int n = 0; n < draws; n += kMaxRows) {
    std::vector<Draw> how;
    for (int i = 0; i < kMaxRows; ++i)
      how.push_back({.temperature = 1, .uniform = static_cast<double>(rng() >> 11) * 0x1.0p-53, .top_k = 7});
    for (const int32_t token : draw_rows(logits, vocab, how)) got[token] += 1.0 / draws;
  }
  for (int i = 0; i < vocab; ++i) EXPECT_NEAR(got[i], want[i], 5 * std::sqrt(0.25 / draws)) << i;
}

// Microseconds of a launch, not a check: printed.
TEST_F(DrawTest, Times) {
  const int vocab = 201088;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<size_t>(vocab) * 128);
  for (float& v : logits) v = normal(rng);
  const DeviceBuffer device_logits = upload(logits), numbers = upload(std::vector<int32_t>{0, 0}),
                     drawn = upload(std::vector<int32_t>(128));
  const PinnedBuffer out = PinnedBuffer::allocate(2 * 129 * sizeof(int32_t)).value();
  const std::pair<const char*, Draw> cases[] = {
      {"greedy", {}},
      {"temperature 1", {.temperature = 1, .uniform = 0.5}},
      {"top-p 0.95", {.temperature = 1, .top_p = 0.95, .uniform = 0.5}},
      {"top-k 40", {.temperature = 1, .uniform = 0.5, .top_k = 40}},
      {"top-k 50, top-p 0.9, min-p 0.02",
       {.temperature = 0.7, .top_p = 0.9, .least = std::log(0.02), .uniform = 0.5, .top_k = 50}}};
  cudaEvent_t start = nullptr, stop = nullptr;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  for (const auto& [name, how] : cases) {
    const DeviceBuffer device_how = upload(std::vector<Draw>(128, how));
    for (const int rows : {1, 8, 32, 128}) {
      constexpr int kTimes = 50;
      for (int i = -5; i < kTimes; ++i) {
        if (i == 0) cudaEventRecord(start, nullptr);
        ASSERT_TRUE(draw({device_logits.as<float>(), rows, vocab, device_how.as<Draw>(), numbers.as<int>(),
                          drawn.as<int32_t>(), out.as<int32_t>(), numbers.as<int32_t>() + 1, 128},
                         nullptr)
                        .ok());
      }
      cudaEventRecord(stop, nullptr);
      ASSERT_EQ(cudaEventSynchronize(stop), cudaSuccess);
      float ms = 0;
      cudaEventElapsedTime(&ms, start, stop);
      std::printf("%-32s %4d rows %7.1f us\n", name, rows, ms * 1e3 / kTimes);
    }
  }
  cudaEventDestroy(start), cudaEventDestroy(stop);
}

}  // namespace
}  // namespace moesaic::cuda
