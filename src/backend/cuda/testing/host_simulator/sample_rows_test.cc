// The sampling kernel with one CTA a row, as on devices without clusters, on the host: the tokens of
// core/choose_token.h, and sums of probabilities that overflow 32 bits.
#define sample sample_on_host
#define copy_step_inputs copy_step_inputs_on_host
#define edit_logits edit_logits_on_host
#include "backend/cuda/kernels/common/sample.cu"
#undef edit_logits
#undef copy_step_inputs
#undef sample

#include <gtest/gtest.h>

#include <random>

#include "backend/cuda/step/step_io.h"
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

// The last row is edited; what is not finite stays so.
void expect_edited(const std::vector<float>& logits, int vocab, const LogitEdits& edits,
                   const DeviceSampling& sampling) {
  constexpr int kRow = kRows - 1;
  const std::span<const float> own(logits.data() + int64_t{kRow} * vocab, static_cast<size_t>(vocab));
  std::vector<float> want(own.begin(), own.end()), device = logits;
  apply_edits(edits, want);
  const EditedRow row{kRow, sampling, edits};
  std::vector<std::byte> packed(packed_bytes(row));
  const RowEdits on_device = pack_edits(std::span(&row, 1), packed.data()).at(packed.data());
  ASSERT_TRUE(edit_logits_on_host(device.data(), vocab, on_device, nullptr).ok());
  EXPECT_TRUE(std::equal(logits.begin(), logits.end() - vocab, device.begin()));
  std::vector<SampleResult> results(kRows);
  results[kRow].likeliest = 3, results[kRow].normalizer = 5.5;
  std::vector<int32_t> sampled(kRows, -9);
  const int fault = 77, buffer = 0;
  ASSERT_TRUE(sample_on_host({.logits = device.data(),
                              .vocab = vocab,
                              .fault = &fault,
                              .sampled_tokens = sampled.data(),
                              .results = results.data(),
                              .result_buffer = &buffer,
                              .stride = kRows,
                              .edits = on_device},
                             1, nullptr)
                  .ok());
  const int32_t token = choose_token(want, {}, sampling);
  EXPECT_EQ(sampled[0], -9);
  ASSERT_EQ(sampled[kRow], token) << "of " << vocab;
  EXPECT_EQ(results[kRow].token, token);
  EXPECT_EQ(results[kRow].logit, own[static_cast<size_t>(token)]);
  EXPECT_EQ(results[kRow].likeliest, 3);
  EXPECT_EQ(results[kRow].normalizer, 5.5);
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

// The edits of each kind, in a row that was sampled before for its log-probabilities: the other row stays.
TEST(SampleRows, AnEditedRowIsSampledAnew) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal;
  for (const int vocab : {40, 1000, 5003}) {
    for (int turn = 0; turn < 24; ++turn) {
      std::vector<float> logits(static_cast<size_t>(kRows) * vocab);
      for (float& v : logits) v = 3 * normal(rng);
      LogitEdits edits;
      for (int token = turn; (turn & 1) != 0 && token < vocab; token += 1 + static_cast<int>(rng() % 9))
        edits.tokens.push_back({token, normal(rng), 1.3, normal(rng)});
      for (int word = 0; (turn & 2) != 0 && word < (vocab + 63) / 64; ++word)
        edits.allowed.push_back(uint64_t{rng()} << 20 & rng() * 77777u);
      if (!edits.allowed.empty()) edits.allowed[0] |= 5;
      const DeviceSampling sampling{.temperature = turn % 3 == 0 ? 0.0 : 0.9,
                                    .top_p = turn % 4 == 0 ? 0.8 : 1,
                                    .uniform = (turn + 0.5) / 24,
                                    .top_k = turn % 5 == 0 ? 7 : 0,
                                    .logprobs = 3};
      expect_edited(logits, vocab, edits, sampling);
    }
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
