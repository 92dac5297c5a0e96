// The sampling kernel with one CTA a row, as on devices without clusters, on the host: the tokens of
// core/choose_token.h, and sums of probabilities that overflow 32 bits.
#define sample sample_on_host
#define copy_step_inputs copy_step_inputs_on_host
#include "backend/cuda/kernels/common/sample.cu"
#undef copy_step_inputs
#undef sample

#include <gtest/gtest.h>

#include <random>

#include "core/choose_token.h"

namespace moesaic::cuda {
namespace {

constexpr int kRows = 2;

std::vector<SampleResult> sample_rows(const std::vector<float>& logits, int vocab,
                                      const DeviceSampling& sampling) {
  const std::vector<DeviceSampling> all(kRows, sampling);
  std::vector<SampleResult> results(kRows);
  std::vector<int32_t> tokens(kRows, -9);
  const int fault = 77, buffer = 0;
  const Status status = sample_on_host({.logits = logits.data(),
                                        .rows = kRows,
                                        .vocab = vocab,
                                        .sampling = all.data(),
                                        .fault = &fault,
                                        .sampled_tokens = tokens.data(),
                                        .results = results.data(),
                                        .result_buffer = &buffer,
                                        .stride = kRows},
                                       1, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  for (int row = 0; row < kRows; ++row) EXPECT_EQ(tokens[row], results[row].token);
  return results;
}

void expect_the_hosts(const std::vector<float>& logits, int vocab, const DeviceSampling& sampling) {
  const std::vector<SampleResult> got = sample_rows(logits, vocab, sampling);
  for (int row = 0; row < kRows; ++row) {
    const std::span<const float> own(logits.data() + int64_t{row} * vocab, static_cast<size_t>(vocab));
    EXPECT_EQ(got[row].token, choose_token(own, {}, sampling)) << "row " << row << " of " << vocab;
    EXPECT_EQ(got[row].fault, 77);
    if (sampling.logprobs < 0) continue;
    EXPECT_NEAR(got[row].normalizer, moesaic::log_sum_exp(own), 1e-9);
    const std::vector<Candidate> want = likeliest(own, {}, static_cast<size_t>(sampling.logprobs));
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[row].top[i].token, want[i].second);
  }
}

TEST(SampleRows, TokensAreTheHosts) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (const int vocab : {1, 33, 1000, 5003}) {
    std::vector<float> logits(static_cast<size_t>(kRows) * vocab);
    for (float& v : logits) v = 3 * normal(rng);
    for (const double uniform : {0.0, 0.3, 0.999}) {
      expect_the_hosts(logits, vocab, {.uniform = uniform});
      expect_the_hosts(logits, vocab, {.temperature = 1, .uniform = uniform});
      expect_the_hosts(logits, vocab, {.temperature = 0.7, .top_p = 0.9, .uniform = uniform});
      expect_the_hosts(logits, vocab, {.temperature = 1.3, .uniform = uniform, .top_k = 40});
    }
    expect_the_hosts(logits, vocab, {.temperature = 1, .uniform = 0.5, .logprobs = std::min(vocab, 5)});
  }
}

// Equal logits: a bin of the first histogram has 2^8 tokens of mass 2^33 in the order of ids, all tokens of
// the row in that of likelihood. The largest vocabulary fills the sums' 51 bits.
TEST(SampleRows, EqualLogitsOfTheLargestVocabulary) {
  const std::vector<float> logits(static_cast<size_t>(kRows) * kMostSampledVocab, -2.5f);
  for (const DeviceSampling& sampling : {DeviceSampling{.temperature = 1, .uniform = 0.75},
                                         DeviceSampling{.temperature = 1, .top_p = 0.5, .uniform = 0.75}}) {
    const double share = sampling.top_p < 1 ? 0.5 : 1;
    for (const SampleResult& result : sample_rows(logits, kMostSampledVocab, sampling))
      EXPECT_EQ(result.token, static_cast<int>(0.75 * share * kMostSampledVocab));
  }
}

TEST(SampleRows, ALogitThatIsNotFiniteGivesNoToken) {
  std::vector<float> logits(kRows * 100, 1.0f);
  logits[40] = NAN, logits[140] = INFINITY;
  for (const SampleResult& result : sample_rows(logits, 100, {.temperature = 1, .uniform = 0.5}))
    EXPECT_EQ(result.token, -1);
}

}  // namespace
}  // namespace moesaic::cuda
