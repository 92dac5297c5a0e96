// Tokens sampled on the device and their log-probabilities against the host's sampler, which sorts.
#include "backend/cuda/kernels/common/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/features.h"
#include "backend/cuda/step/step_io.h"
#include "engine/sampler.h"

namespace moesaic::cuda {
namespace {

constexpr int kMaxRows = 16;

// The parameter: CTAs of a row.
class SampleTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
    const Result<Features> features = features_of_device(0);
    ASSERT_TRUE(features.ok()) << features.status().message();
    if (GetParam() > 1 && !features.value().have(kClusters)) GTEST_SKIP() << "the device has no clusters";
    results_ = PinnedBuffer::allocate(2 * kMaxRows * sizeof(SampleResult)).value();
  }
  template <typename T>
  static DeviceBuffer upload(const std::vector<T>& values) {
    DeviceBuffer buffer = DeviceBuffer::allocate(values.size() * sizeof(T), "test").value();
    EXPECT_EQ(cudaMemcpy(buffer.as<T>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              0);
    return buffer;
  }
  // A token of every row; fault is arbitrary, and the second result buffer is used. Nothing is written but
  // what was asked for.
  std::vector<SampledToken> sample_rows(const std::vector<float>& logits, int vocab,
                                        const std::vector<DeviceSampling>& sampling) {
    constexpr int kPoison = 0xEE;
    const auto poisoned = [&](const auto* first, const auto* last) {
      return std::all_of(reinterpret_cast<const uint8_t*>(first), reinterpret_cast<const uint8_t*>(last),
                         [&](uint8_t byte) { return byte == kPoison; });
    };
    std::memset(results_.as<void>(), kPoison, results_.bytes());
    const auto rows = static_cast<int>(sampling.size());
    const DeviceBuffer device_logits = upload(logits), device_sampling_rows = upload(sampling);
    const DeviceBuffer numbers = upload(std::vector<int32_t>{77, 1}),
                       sampled_tokens = upload(std::vector<int32_t>(rows, -9));
    EXPECT_TRUE(sample({.logits = device_logits.as<float>(),
                        .rows = rows,
                        .vocab = vocab,
                        .sampling = device_sampling_rows.as<DeviceSampling>(),
                        .fault = numbers.as<int>(),
                        .sampled_tokens = sampled_tokens.as<int32_t>(),
                        .results = results_.as<SampleResult>(),
                        .result_buffer = numbers.as<int32_t>() + 1,
                        .stride = kMaxRows},
                       GetParam(), nullptr)
                    .ok());
    std::vector<int32_t> tokens(rows);
    EXPECT_EQ(cudaMemcpy(tokens.data(), sampled_tokens.as<int32_t>(), rows * sizeof(int32_t),
                         cudaMemcpyDeviceToHost),
              0);
    const SampleResult* results = results_.as<SampleResult>() + kMaxRows;
    std::vector<SampledToken> out;
    for (int row = 0; row < rows; ++row) {
      EXPECT_EQ(results[row].fault, 77);
      EXPECT_EQ(results[row].token, tokens[row]);
      EXPECT_EQ(results[row].likeliest, tokens[row] < 0 ? -1 : std::min(sampling[row].logprobs, vocab));
      const auto* entries = results[row].top;
      EXPECT_TRUE(poisoned(entries + std::max(results[row].likeliest, 0), entries + kMostLogprobs));
      out.push_back(token_of(results[row]));
    }
    EXPECT_TRUE(poisoned(results_.as<SampleResult>(), results) &&
                poisoned(results + rows, results + kMaxRows));
    return out;
  }
  std::vector<int32_t> sample_tokens(const std::vector<float>& logits, int vocab,
                                     const std::vector<DeviceSampling>& sampling) {
    std::vector<int32_t> tokens;
    for (const SampledToken& t : sample_rows(logits, vocab, sampling)) tokens.push_back(t.token);
    return tokens;
  }
  // The host's log-probabilities of the sampled token, which is the same when none are asked for; the
  // same bits in company and alone.
  void expect_the_hosts_logprobs(const std::vector<float>& logits, int vocab,
                                 const std::vector<DeviceSampling>& sampling) {
    std::vector<DeviceSampling> unasked = sampling;
    for (DeviceSampling& p : unasked) p.logprobs = -1;
    const std::vector<SampledToken> got = sample_rows(logits, vocab, sampling);
    const std::vector<int32_t> tokens = sample_tokens(logits, vocab, unasked);
    for (size_t row = 0; row < sampling.size(); ++row) {
      const int n = sampling[row].logprobs;
      SCOPED_TRACE("row " + std::to_string(row) + " of " + std::to_string(vocab) + ", " + std::to_string(n));
      const auto first = logits.begin() + static_cast<int64_t>(row) * vocab;
      const std::vector<float> own(first, first + vocab);
      EXPECT_EQ(got[row].token, tokens[row]);
      expect_near(got[row].logprobs, n < 0 ? TokenLogprobs() : logprobs_of(own, tokens[row], n));
      EXPECT_EQ(sample_rows(own, vocab, {sampling[row]}).front().logprobs, got[row].logprobs);
    }
  }
  static void expect_near(const TokenLogprobs& got, const TokenLogprobs& want) {
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-10 * (1 + std::abs(b)); };
    EXPECT_TRUE(near(got.logprob, want.logprob)) << got.logprob << " " << want.logprob;
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t i = 0; i < want.top.size(); ++i) {
      ASSERT_EQ(got.top[i].first, want.top[i].first) << i;
      ASSERT_TRUE(near(got.top[i].second, want.top[i].second)) << i;
    }
  }
  // Rows of different logits, sampled on both sides with the same seeds.
  void expect_the_hosts_tokens(const SamplingParams& params, int vocab, float deviation, int samples) {
    std::mt19937 rng(static_cast<uint32_t>(vocab) + static_cast<uint32_t>(samples));
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> logits(static_cast<size_t>(vocab) * kMaxRows);
    for (float& v : logits) v = normal(rng);
    for (int n = 0; n < samples; n += kMaxRows) {
      std::vector<DeviceSampling> sampling;
      std::vector<int32_t> want;
      for (int row = 0; row < kMaxRows; ++row) {
        SamplingParams p = params;
        p.seed = static_cast<uint64_t>(n + row) * 7919 + 1;
        Sampler sampler(p, {});
        sampling.push_back(sampler.device_sampling(0).value());
        std::vector<float> copy(logits.begin() + row * static_cast<int64_t>(vocab),
                                logits.begin() + (row + 1) * static_cast<int64_t>(vocab));
        want.push_back(sampler.sample(copy).value().token);
      }
      ASSERT_EQ(sample_tokens(logits, vocab, sampling), want)
          << params.temperature << " " << params.top_k << " " << params.top_p << " " << params.min_p << " of "
          << vocab << ", deviation " << deviation;
    }
  }

  // want: the token of each row; -9: the row is not edited and gets none.
  void expect_edited_tokens(const std::vector<float>& logits, int vocab, const std::vector<EditedRow>& rows,
                            const std::vector<int32_t>& want) {
    size_t bytes = 0;
    for (const EditedRow& row : rows) bytes += packed_bytes(row);
    std::vector<std::byte> packed(bytes);
    const PackedEdits sent = pack_edits(rows, packed.data());
    ASSERT_EQ(sent.bytes, bytes);
    const DeviceBuffer device_logits = upload(logits), device_edits = upload(packed),
                       numbers = upload(std::vector<int32_t>{77, 1}),
                       sampled_tokens = upload(std::vector<int32_t>(kMaxRows, -9));
    const RowEdits edits = sent.at(device_edits.as<std::byte>());
    ASSERT_TRUE(edit_logits(device_logits.as<float>(), vocab, edits, nullptr).ok());
    ASSERT_TRUE(sample({.logits = device_logits.as<float>(),
                        .vocab = vocab,
                        .fault = numbers.as<int>(),
                        .sampled_tokens = sampled_tokens.as<int32_t>(),
                        .results = results_.as<SampleResult>(),
                        .result_buffer = numbers.as<int32_t>() + 1,
                        .stride = kMaxRows,
                        .edits = edits},
                       GetParam(), nullptr)
                    .ok());
    std::vector<int32_t> got(kMaxRows);
    EXPECT_EQ(cudaMemcpy(got.data(), sampled_tokens.as<int32_t>(), got.size() * sizeof(int32_t),
                         cudaMemcpyDeviceToHost),
              0);
    EXPECT_EQ(got, want) << "of " << vocab;
    const SampleResult* results = results_.as<SampleResult>() + kMaxRows;
    for (const EditedRow& row : rows) {
      EXPECT_EQ(results[row.row].token, got[row.row]);
      if (row.sampling.logprobs >= 0) {
        EXPECT_EQ(results[row.row].logit, logits[int64_t{row.row} * vocab + got[row.row]]);
      }
    }
  }

  PinnedBuffer results_;
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

TEST_P(SampleTest, TokensAreTheHostsForEveryVocabularyAndSpread) {
  for (const int vocab : {1, 31, 300, 5001, 201088}) {
    for (const float deviation : {0.05f, 2.0f, 8.0f}) {
      for (const SamplingParams& p : kCases)
        expect_the_hosts_tokens(p, vocab, deviation, vocab > 10000 ? 16 : 96);
    }
  }
}

// Rows whose logits are changed on the device, the last one first: the host's tokens, and of the
// log-probabilities that were there before, the token's own.
TEST_P(SampleTest, EditedRowsGiveTheHostsTokens) {
  const std::vector<SamplingParams> params = {
      {.temperature = 0, .frequency_penalty = 2},
      {.presence_penalty = -1.5, .top_logprobs = 0},
      {.top_p = 0.9, .repetition_penalty = 1.2},
      {.top_k = 20, .repetition_penalty = 0.7, .logit_bias = {{0, 9.f}, {30, -50.f}}},
      {.temperature = 0.5, .allowed_tokens = {1, 5, 17, 30}},
      {.top_p = 0.5, .allowed_tokens = {2}},
      {.stop_tokens = {0, 3, 9}, .min_tokens = 100, .bad_words = {{7}, {8}}},
      {.logit_bias = {{4, 20.f}}, .top_logprobs = 2, .bad_words = {{4}}}};
  for (const int vocab : {31, 5001, 201088}) {
    std::mt19937 rng(static_cast<uint32_t>(vocab));
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(static_cast<size_t>(vocab) * kMaxRows);
    for (float& v : logits) v = normal(rng);
    const std::vector<int32_t> prompt = {1, 2, 3, 30, 29};
    std::vector<EditedRow> rows;
    std::vector<int32_t> want(kMaxRows, -9);
    for (int row = kMaxRows - 1; row >= 0; row -= 2) {
      SamplingParams p = params[static_cast<size_t>(row) / 2];
      p.seed = static_cast<uint64_t>(row);
      Sampler sampler(p, prompt);
      for (const int32_t token : {3, 3, 12}) ASSERT_TRUE(sampler.take({.token = token}).ok());
      rows.push_back({.row = row,
                      .sampling = sampler.edited_sampling(0).value(),
                      .edits = sampler.edits(static_cast<size_t>(vocab)).value()});
      const auto first = logits.begin() + static_cast<int64_t>(row) * vocab;
      std::vector<float> copy(first, first + vocab);
      want[static_cast<size_t>(row)] = sampler.sample(copy).value().token;
    }
    expect_edited_tokens(logits, vocab, rows, want);
  }
}

TEST_P(SampleTest, OfEqualsTheLowestId) {
  const int vocab = 201088;
  std::vector<float> logits(vocab, 1.5f);
  EXPECT_EQ(sample_tokens(logits, vocab, {{}}), std::vector<int32_t>{0});
  std::fill_n(logits.begin(), 1000, 1.0f);
  EXPECT_EQ(sample_tokens(logits, vocab, {{}}), std::vector<int32_t>{1000});
  logits = std::vector<float>(vocab, -0.0f);
  logits[70000] = 0.0f;
  EXPECT_EQ(sample_tokens(logits, vocab, {{}}), std::vector<int32_t>{0});
  std::fill(logits.begin(), logits.end(), 1.5f);
  // The nucleus of equals is the lower half of the ids, the k likeliest the first k.
  EXPECT_EQ(sample_tokens(logits, vocab, {{.temperature = 1, .top_p = 0.5, .uniform = 1 - 1e-12}}),
            std::vector<int32_t>{vocab / 2 - 1});
  EXPECT_EQ(sample_tokens(logits, vocab, {{.temperature = 1, .uniform = 1 - 1e-12, .top_k = 777}}),
            std::vector<int32_t>{776});
}

TEST_P(SampleTest, WhatIsNotFiniteIsToldAndHarmsNoOtherRow) {
  const int vocab = 5000;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> logits(3 * vocab, 0.0f);
    logits[vocab + 4999] = bad;
    logits[2 * vocab + 7] = 1.0f;
    const DeviceSampling sampled{.temperature = 1, .top_p = 0.5};
    EXPECT_EQ(sample_tokens(logits, vocab, {sampled, sampled, {}}), (std::vector<int32_t>{0, -1, 7}));
    const DeviceSampling results{.logprobs = 3};
    const std::vector<SampledToken> got = sample_rows(logits, vocab, {results, results, results});
    EXPECT_EQ(got[1].token, -1);
    EXPECT_EQ(got[1].logprobs, TokenLogprobs{});
    EXPECT_NEAR(got[0].logprobs.logprob, -std::log(5000.0), 1e-12);
    EXPECT_EQ(got[2].logprobs.top[0].first, 7);
    EXPECT_EQ(got[2].logprobs.top[2].first, 1);
  }
}

// Rows of every kind beside each other, of a normal number and the token's id.
using Logit = float (*)(float normal, int id);
const Logit kKinds[] = {[](float n, int) { return 2 * n; }, [](float n, int) { return 0.05f * n; },
                        [](float n, int) { return 8 * n; },
                        [](float n, int) { return 300 * n; },            // the 20th lies far below
                        [](float n, int) { return std::round(2 * n); },  // many equals
                        [](float n, int) { return 20 + 0.0005f * n; },   // all about as likely
                        [](float n, int) { return std::copysign(0.0f, n); }, [](float, int) { return -3.5f; },
                        [](float, int id) { return 1e-3f * static_cast<float>(id); },
                        [](float n, int id) { return id < 10 ? 50.0f - static_cast<float>(id) : n; },
                        // The 100 likeliest end in a bin of 250.
                        [](float n, int id) {
                          return id < 99 ? 20.0f : id < 349 ? 10.01f + 1e-3f * n : n - 20;
                        },
                        [](float n, int id) { return id % 50 == 3 ? -1e30f : n; },
                        [](float n, int id) { return id % 1000 == 7 ? 3e38f : 1e38f * std::tanh(n); }};

std::vector<float> rows_of(std::span<const Logit> kinds, int vocab) {
  std::mt19937 rng(static_cast<uint32_t>(vocab));
  std::normal_distribution<float> normal;
  std::vector<float> logits;
  for (const Logit kind : kinds) {
    for (int id = 0; id < vocab; ++id) logits.push_back(kind(normal(rng), id));
  }
  return logits;
}

TEST_P(SampleTest, LogprobsAreTheHosts) {
  const SamplingParams cases[] = {
      {.temperature = 0}, {}, {.top_k = 40}, {.top_p = 0.95}, {.top_p = 0.9, .min_p = 0.1}};
  const int counts[] = {-1, 0, 1, 7, 20, 99, 100};
  for (const int vocab : {1, 33, 257, 4096, 201088}) {
    const std::vector<float> logits = rows_of(kKinds, vocab);
    for (size_t result_buffer = 0; result_buffer < std::size(counts); ++result_buffer) {
      std::vector<DeviceSampling> sampling;
      for (size_t row = 0; row < std::size(kKinds); ++row) {
        SamplingParams p = cases[(row + result_buffer) % std::size(cases)];
        p.seed = row + 1, p.top_logprobs = counts[(row + result_buffer) % std::size(counts)];
        sampling.push_back(Sampler(p, {}).device_sampling(0).value());
      }
      expect_the_hosts_logprobs(logits, vocab, sampling);
    }
  }
}

// Differences that no sum with the top would show.
TEST_P(SampleTest, TheLikeliestAreToldApartByTheSmallestDifference) {
  const Logit kinds[] = {[](float n, int) { return 1e-38f * n; },
                         [](float n, int id) { return id == 9 ? 30.0f : 1e-20f * n; },
                         [](float n, int id) { return id == 9 ? 1e30f : n; },
                         [](float, int id) { return std::nextafter(25.0f, id % 3 < 1 ? 0.0f : 30.0f); }};
  for (const int vocab : {300, 201088}) {
    for (const int n : {1, 2, 20, 100})
      expect_the_hosts_logprobs(rows_of(kinds, vocab), vocab,
                                std::vector<DeviceSampling>(std::size(kinds), {.logprobs = n}));
  }
}

// Twelve tokens, 64,000 samples: the frequencies are those of the filtered distribution.
TEST_P(SampleTest, FrequenciesMatchTheDistribution) {
  const int vocab = 12, samples = 64000;
  std::vector<float> row;
  for (int i = 0; i < vocab; ++i) row.push_back(static_cast<float>((i * 7) % vocab) * 0.5f);
  std::vector<float> logits;
  for (int i = 0; i < kMaxRows; ++i) logits.insert(logits.end(), row.begin(), row.end());
  std::vector<double> want(vocab), got(vocab);
  double total = 0;
  for (int i = 0; i < vocab; ++i) total += row[i] >= 2.5f ? std::exp(row[i]) : 0;  // the 7 likeliest
  for (int i = 0; i < vocab; ++i) want[i] = row[i] >= 2.5f ? std::exp(row[i]) / total : 0;
  std::mt19937_64 rng(5);
  for (int n = 0; n < samples; n += kMaxRows) {
    std::vector<DeviceSampling> sampling;
    for (int i = 0; i < kMaxRows; ++i)
      sampling.push_back(
          {.temperature = 1, .uniform = static_cast<double>(rng() >> 11) * 0x1.0p-53, .top_k = 7});
    for (const int32_t token : sample_tokens(logits, vocab, sampling)) got[token] += 1.0 / samples;
  }
  for (int i = 0; i < vocab; ++i) EXPECT_NEAR(got[i], want[i], 5 * std::sqrt(0.25 / samples)) << i;
}

// Microseconds of a launch, not a check: printed.
TEST_P(SampleTest, Times) {
  const int vocab = 201088;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<size_t>(vocab) * 128);
  for (float& v : logits) v = normal(rng);
  const DeviceBuffer device_logits = upload(logits), numbers = upload(std::vector<int32_t>{0, 0}),
                     sampled_tokens = upload(std::vector<int32_t>(128));
  const PinnedBuffer results = PinnedBuffer::allocate(2 * 128 * sizeof(SampleResult)).value();
  const std::pair<const char*, DeviceSampling> cases[] = {
      {"greedy", {}},
      {"greedy, its log-probability", {.logprobs = 0}},
      {"greedy, 20 log-probabilities", {.logprobs = 20}},
      {"greedy, 100 log-probabilities", {.logprobs = 100}},
      {"temperature 1", {.temperature = 1, .uniform = 0.5}},
      {"temperature 1, 5 log-probabilities", {.temperature = 1, .uniform = 0.5, .logprobs = 5}},
      {"top-p 0.95", {.temperature = 1, .top_p = 0.95, .uniform = 0.5}},
      {"top-k 40", {.temperature = 1, .uniform = 0.5, .top_k = 40}},
      {"top-k 50, top-p 0.9, min-p 0.02",
       {.temperature = 0.7, .top_p = 0.9, .least = std::log(0.02), .uniform = 0.5, .top_k = 50}}};
  cudaEvent_t start = nullptr, stop = nullptr;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  for (const auto& [name, sampling] : cases) {
    const DeviceBuffer device_sampling_rows = upload(std::vector<DeviceSampling>(128, sampling));
    for (const int rows : {1, 8, 32, 128}) {
      constexpr int kTimes = 50;
      for (int i = -5; i < kTimes; ++i) {
        if (i == 0) cudaEventRecord(start, nullptr);
        ASSERT_TRUE(sample({device_logits.as<float>(), rows, vocab, device_sampling_rows.as<DeviceSampling>(),
                            numbers.as<int>(), sampled_tokens.as<int32_t>(), results.as<SampleResult>(),
                            numbers.as<int32_t>() + 1, 128},
                           GetParam(), nullptr)
                        .ok());
      }
      cudaEventRecord(stop, nullptr);
      ASSERT_EQ(cudaEventSynchronize(stop), cudaSuccess);
      float ms = 0;
      cudaEventElapsedTime(&ms, start, stop);
      std::printf("%-36s %4d rows %7.1f us\n", name, rows, ms * 1e3 / kTimes);
    }
  }
  cudaEventDestroy(start), cudaEventDestroy(stop);
}

INSTANTIATE_TEST_SUITE_P(CtasOfARow, SampleTest, testing::Values(kSampleCluster, 1));

}  // namespace
}  // namespace moesaic::cuda
