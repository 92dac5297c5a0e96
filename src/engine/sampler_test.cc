// The sampler's filters and log-probabilities against their definitions: sort everything, cut, draw.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace moesaic {
namespace {

std::vector<float> normal_logits(int vocab, float deviation, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(vocab);
  for (float& v : logits) v = normal(rng);
  return logits;
}

struct Weighted {
  int32_t token;
  double weight;
};

// Temperature, top-k, top-p, min-p, each over what the one before it left; likeliest first.
std::vector<Weighted> by_definition(const SamplingParams& p, const std::vector<float>& logits) {
  std::vector<Weighted> kept;
  const double top = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i)
    kept.push_back({static_cast<int32_t>(i), std::exp((logits[i] - top) / p.temperature)});
  std::stable_sort(kept.begin(), kept.end(),
                   [&](const Weighted& a, const Weighted& b) { return logits[a.token] > logits[b.token]; });
  if (p.top_k > 0 && kept.size() > static_cast<size_t>(p.top_k)) kept.resize(p.top_k);
  double total = 0, mass = 0;
  for (const Weighted& k : kept) total += k.weight;
  size_t n = 0;
  while (n < kept.size() && mass < p.top_p * total) mass += kept[n++].weight;
  kept.resize(n);
  std::erase_if(kept, [&](const Weighted& k) { return k.weight < p.min_p; });
  return kept;
}

std::vector<int32_t> drawn(const SamplingParams& params, const std::vector<float>& logits, int draws) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < draws; ++i) {
    SamplingParams p = params;
    p.seed = static_cast<uint64_t>(i);
    std::vector<float> copy = logits;
    tokens.push_back(Sampler(p, {}).sample(copy).value().token);
  }
  return tokens;
}

// A nucleus alone draws what one draws from the whole vocabulary sorted (top_k of its size sorts all).
TEST(SamplerFilters, ANucleusIsThatOfTheFullSort) {
  for (const float deviation : {0.1f, 2.0f, 6.0f}) {
    const std::vector<float> logits = normal_logits(5000, deviation, 3);
    for (const double top_p : {1e-9, 0.3, 0.9, 0.9999}) {
      const SamplingParams nucleus{.top_p = top_p},
          sorted{.top_p = top_p, .top_k = static_cast<int>(logits.size())};
      EXPECT_EQ(drawn(nucleus, logits, 300), drawn(sorted, logits, 300)) << deviation << " " << top_p;
    }
  }
}

TEST(SamplerFilters, EqualLogitsAtTheCutAreTakenInOrder) {
  const std::vector<float> logits(3000, 1.0f);
  std::set<int32_t> tokens;
  for (const int32_t t : drawn({.top_p = 0.1}, logits, 5000)) tokens.insert(t);
  EXPECT_EQ(*tokens.rbegin(), 299);
  EXPECT_GT(tokens.size(), 250u);
}

// Filters combined leave exactly what they leave one after the other.
TEST(SamplerFilters, OrderIsTopKThenTopPThenMinP) {
  // Weights 1, 1/2, 1/4, ... : every order of the three cuts leaves another set.
  std::vector<float> logits;
  for (int i = 0; i < 12; ++i) logits.push_back(-static_cast<float>(i) * std::log(2.0f));
  std::shuffle(logits.begin(), logits.end(), std::mt19937(1));
  const SamplingParams cases[] = {{.top_p = 0.80, .top_k = 3},
                                  {.top_p = 0.80, .min_p = 0.4},
                                  {.top_p = 0.95, .top_k = 4, .min_p = 0.2},
                                  {.temperature = 2, .top_p = 0.9, .top_k = 8, .min_p = 0.1},
                                  {.top_k = 6, .min_p = 0.3},
                                  {.min_p = 1}};
  for (const SamplingParams& p : cases) {
    const std::vector<Weighted> kept = by_definition(p, logits);
    std::set<int32_t> want, got;
    for (const Weighted& k : kept) want.insert(k.token);
    for (const int32_t t : drawn(p, logits, 3000)) got.insert(t);
    EXPECT_EQ(got, want) << p.top_k << " " << p.top_p << " " << p.min_p;
  }
}

// The case in which the order shows: of 1, 1/2, 1/4, ... top-p 0.8 keeps three (7/8 of the mass); had min-p
// gone first, leaving 1 and 1/2, top-p 0.6 would keep one.
TEST(SamplerFilters, MinPDoesNotChangeWhatTopPSees) {
  std::vector<float> logits;
  for (int i = 0; i < 20; ++i) logits.push_back(-static_cast<float>(i) * std::log(2.0f));
  std::set<int32_t> tokens;
  for (const int32_t t : drawn({.top_p = 0.6, .min_p = 0.45}, logits, 500)) tokens.insert(t);
  EXPECT_EQ(tokens, (std::set<int32_t>{0, 1}));
}

TEST(SamplerFilters, PenaltiesAndBiasComeBeforeTheFilters) {
  std::vector<float> logits = {3, 2, 1, 0};
  const SamplingParams p{.top_k = 2, .repetition_penalty = 10, .logit_bias = {{3, 4.0f}}};
  std::set<int32_t> tokens;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SamplingParams q = p;
    q.seed = seed;
    std::vector<float> copy = logits;
    tokens.insert(Sampler(q, std::vector<int32_t>{0}).sample(copy).value().token);
  }
  EXPECT_EQ(tokens, (std::set<int32_t>{1, 3}));  // 3 / 10, 2, 1, 4
}

// Sorted whole, in double precision; the lower id of equals first.
TokenLogprobs logprobs_by_definition(const std::vector<float>& logits, int32_t token, int count) {
  double sum = 0;
  for (const float v : logits) sum += std::exp(double{v});
  std::vector<std::pair<int32_t, double>> all;
  for (size_t i = 0; i < logits.size(); ++i)
    all.emplace_back(static_cast<int32_t>(i), double{logits[i]} - std::log(sum));
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const double logprob = logits[token] - std::log(sum);
  if (all.size() > static_cast<size_t>(count)) all.resize(count);
  return {logprob, all};
}

void expect_near(const TokenLogprobs& got, const TokenLogprobs& want) {
  EXPECT_NEAR(got.logprob, want.logprob, 1e-11);
  ASSERT_EQ(got.top.size(), want.top.size());
  for (size_t i = 0; i < want.top.size(); ++i) {
    EXPECT_EQ(got.top[i].first, want.top[i].first) << i;
    EXPECT_NEAR(got.top[i].second, want.top[i].second, 1e-11) << i;
  }
}

TEST(SamplerLogprobs, AreThoseOfTheDefinition) {
  for (const int vocab : {1, 7, 100, 5000}) {
    std::vector<float> normal = normal_logits(vocab, 3, 11), coarse = normal;
    for (float& v : coarse) v = std::round(v);  // many equals
    std::vector<float> rising(vocab);
    for (int i = 0; i < vocab; ++i) rising[i] = 0.01f * static_cast<float>(i);
    for (const auto& logits : {normal, coarse, rising, std::vector<float>(vocab, 2.5f)}) {
      for (const int n : {0, 1, 20, 100}) {
        SCOPED_TRACE(std::to_string(vocab) + ", " + std::to_string(n));
        std::vector<float> copy = logits;
        const SampledToken t = Sampler({.seed = 5, .top_logprobs = n}, {}).sample(copy).value();
        EXPECT_EQ(t.token, drawn({.seed = 5}, logits, 6).back());  // the seeds are 0 to 5
        expect_near(t.logprobs, logprobs_by_definition(logits, t.token, n));
      }
    }
  }
}

TEST(SamplerLogprobs, AreTheModelsWhateverIsAdjusted) {
  const std::vector<float> logits = normal_logits(3000, 3, 12);
  std::vector<float> copy = logits;
  const SampledToken t = Sampler({.presence_penalty = 1, .logit_bias = {{77, 90.0f}}, .top_logprobs = 20}, {})
                             .sample(copy)
                             .value();
  EXPECT_EQ(t.token, 77);
  expect_near(t.logprobs, logprobs_by_definition(logits, 77, 20));
}

// ---- tokens that may not be drawn ----

// Greedy over logits that fall with the id: the lowest id that is left.
std::vector<int32_t> greedy_run(SamplingParams p, int steps, int vocab = 8) {
  p.temperature = 0;
  Sampler sampler(p, {});
  std::vector<int32_t> tokens;
  for (int i = 0; i < steps; ++i) {
    std::vector<float> logits(vocab);
    for (int t = 0; t < vocab; ++t) logits[t] = -static_cast<float>(t);
    tokens.push_back(sampler.sample(logits).value().token);
  }
  return tokens;
}

TEST(SamplerForbidden, StopTokensWaitForMinTokens) {
  for (const int min : {0, 1, 3}) {
    std::vector<int32_t> want(5, 0);
    std::fill_n(want.begin(), min, 2);
    EXPECT_EQ(greedy_run({.stop_tokens = {0, 1, -1, 99}, .min_tokens = min}, 5), want) << min;
  }
  EXPECT_EQ(greedy_run({.stop_tokens = {0, 1, 2}, .min_tokens = 9}, 2, 3), (std::vector<int32_t>{0, 0}));
}

TEST(SamplerForbidden, TheHostDrawsUntilThen) {
  Sampler sampler({.seed = 3, .stop_tokens = {0}, .min_tokens = 3}, {});
  for (int step = 0; step < 5; ++step) {
    for (int ahead = 0; ahead < 3; ++ahead)
      EXPECT_EQ(sampler.device_sampling(ahead).has_value(), step + ahead >= 3) << step << " " << ahead;
    ASSERT_TRUE(sampler.take({.token = 1}).ok());
  }
  for (const SamplingParams& p :
       {SamplingParams{.allowed_tokens = {1}}, SamplingParams{.bad_words = {{1, 2}}}})
    EXPECT_FALSE(Sampler(p, {}).device_sampling(0));
}

TEST(SamplerForbidden, BadWordsAreNeverComplete) {
  EXPECT_EQ(greedy_run({.bad_words = {{0}}}, 3), (std::vector<int32_t>{1, 1, 1}));
  EXPECT_EQ(greedy_run({.bad_words = {{0, 0}}}, 4), (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(greedy_run({.bad_words = {{0, 0, 0}, {1}}}, 6), (std::vector<int32_t>{0, 0, 2, 0, 0, 2}));
}

TEST(SamplerForbidden, AllowedTokensAreTheOnlyOnes) {
  EXPECT_EQ(greedy_run({.allowed_tokens = {5, 4, 5}}, 2), (std::vector<int32_t>{4, 4}));
  EXPECT_EQ(greedy_run({.stop_tokens = {4}, .min_tokens = 1, .allowed_tokens = {5, 4}}, 2),
            (std::vector<int32_t>{5, 4}));
  std::set<int32_t> tokens;
  for (const int32_t t : drawn({.allowed_tokens = {3, 9}}, normal_logits(50, 1, 4), 200)) tokens.insert(t);
  EXPECT_EQ(tokens, (std::set<int32_t>{3, 9}));
}

// A bias or penalty brings nothing back, not even where the one token that is left is forbidden otherwise.
TEST(Sampler, TakesNothingThatTheCallerForbids) {
  const std::vector<int32_t> prompt = {1, 2};
  Sampler sampler(
      {.repetition_penalty = 1.2, .logit_bias = {{1, 100.f}}, .stop_tokens = {4}, .min_tokens = 5}, prompt);
  std::vector<float> logits(70, 1.0f);
  const auto only_four = [](std::span<float> row) {
    for (size_t i = 0; i < row.size(); ++i) row[i] = i == 4 ? row[i] : -INFINITY;
  };
  const auto sampled = sampler.pick(logits, only_four);
  ASSERT_TRUE(sampled.ok()) << sampled.status().message();
  EXPECT_EQ(sampled->token, 4);
}

TEST(SamplerForbidden, LogprobsStayTheModels) {
  const std::vector<float> logits = normal_logits(100, 3, 12);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<float> copy = logits;
  const SamplingParams p{.temperature = 0, .stop_tokens = {best}, .top_logprobs = 5, .min_tokens = 1};
  const SampledToken t = Sampler(p, {}).sample(copy).value();
  EXPECT_NE(t.token, best);
  expect_near(t.logprobs, logprobs_by_definition(logits, t.token, 5));
}

TEST(SamplerForbidden, ParametersAtTheEdgesOfTheirRanges) {
  using P = SamplingParams;
  for (const P& p : std::vector<P>{{.presence_penalty = 2},
                                   {.frequency_penalty = -2},
                                   {.repetition_penalty = 100},
                                   {.top_logprobs = -1},
                                   {.top_logprobs = kMostLogprobs},
                                   {.prompt_logprobs = -1},
                                   {.prompt_logprobs = kMostLogprobs},
                                   {.max_tokens = 0}})
    EXPECT_TRUE(validate(p, 100).ok()) << validate(p, 100).message();
  for (const P& p : std::vector<P>{{.presence_penalty = 2.001},
                                   {.frequency_penalty = -2.001},
                                   {.repetition_penalty = 100.5},
                                   {.top_logprobs = -2},
                                   {.top_logprobs = kMostLogprobs + 1},
                                   {.prompt_logprobs = -2},
                                   {.prompt_logprobs = kMostLogprobs + 1},
                                   {.penalty_window = -1},
                                   {.max_tokens = -1}})
    EXPECT_FALSE(validate(p, 100).ok());
}

TEST(SamplerForbidden, ParametersOutOfRange) {
  for (const SamplingParams& p : {SamplingParams{.min_tokens = -1}, SamplingParams{.allowed_tokens = {100}},
                                  SamplingParams{.bad_words = {{}}}, SamplingParams{.bad_words = {{1, -1}}}})
    EXPECT_FALSE(validate(p, 100).ok());
  const SamplingParams ends{
      .logit_bias = {{0, 1e4f}, {99, -1e4f}}, .allowed_tokens = {0, 99}, .bad_words = {{0, 99}}};
  EXPECT_TRUE(validate(ends, 100).ok()) << validate(ends, 100).message();
}

std::vector<double> draw_frequencies(const SamplingParams& params, const std::vector<float>& logits,
                                     int draws) {
  std::vector<double> counts(logits.size());
  for (int i = 0; i < draws; ++i) {
    SamplingParams p = params;
    p.seed = static_cast<uint64_t>(i) * 7919 + 13;
    std::vector<float> copy = logits;
    counts[Sampler(p, {}).sample(copy).value().token] += 1.0 / draws;
  }
  return counts;
}

std::vector<double> expected(const SamplingParams& p, const std::vector<float>& logits) {
  std::vector<double> probability(logits.size());
  const std::vector<Weighted> kept = by_definition(p, logits);
  double total = 0;
  for (const Weighted& k : kept) total += k.weight;
  for (const Weighted& k : kept) probability[static_cast<size_t>(k.token)] = k.weight / total;
  return probability;
}

TEST(Sampler, FrequenciesMatchTheDefinition) {
  const std::vector<float> logits = normal_logits(12, 2, 5);
  const SamplingParams cases[] = {{},
                                  {.temperature = 0.5},
                                  {.top_k = 3},
                                  {.top_p = 0.7},
                                  {.min_p = 0.2},
                                  {.top_p = 0.9, .min_p = 0.3},
                                  {.temperature = 1.5, .top_p = 0.9, .top_k = 6}};
  for (const SamplingParams& p : cases) {
    const std::vector<double> got = draw_frequencies(p, logits, 40000), want = expected(p, logits);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 5 * std::sqrt(0.25 / 40000));
      if (want[i] == 0) {
        EXPECT_EQ(got[i], 0);
      }
    }
  }
}

TEST(Sampler, GreedyAndSeeds) {
  const std::vector<float> logits = normal_logits(201088, 2, 1);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<float> copy = logits;
  EXPECT_EQ(Sampler({.temperature = 0}, {}).sample(copy).value().token, best);
  const auto run = [&](uint64_t seed) {
    Sampler sampler({.seed = seed}, {});
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20; ++i) {
      std::vector<float> fresh = logits;
      tokens.push_back(sampler.sample(fresh).value().token);
    }
    return tokens;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

TEST(Sampler, PenaltiesAndBias) {
  std::vector<float> logits = {1.0f, 0.9f, 0.5f};
  Sampler repeat({.temperature = 0, .repetition_penalty = 2}, std::vector<int32_t>{0});
  EXPECT_EQ(repeat.sample(logits).value().token, 1);
  logits = {1.0f, 0.9f, 0.5f};
  EXPECT_EQ(repeat.sample(logits).value().token, 0);  // 0.5, 0.45 and 0.5: the lower id of equals
  Sampler presence({.temperature = 0, .presence_penalty = 0.3}, {});
  std::vector<int32_t> tokens;
  for (int i = 0; i < 3; ++i) {
    logits = {1.0f, 0.9f, 0.5f};
    tokens.push_back(presence.sample(logits).value().token);
  }
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 0}));
  logits = {1.0f, 0.9f, 0.5f};
  EXPECT_EQ(Sampler({.temperature = 0, .logit_bias = {{2, 5.0f}}}, {}).sample(logits).value().token, 2);
}

// A token of the prompt that is biased and was generated twice is edited once, by all three.
TEST(Sampler, ATokensEditsAreOne) {
  const SamplingParams params{.temperature = 0,
                              .repetition_penalty = 2,
                              .presence_penalty = 0.25,
                              .frequency_penalty = 0.5,
                              .logit_bias = {{1, 9.0F}, {3, 1.0F}}};
  Sampler sampler(params, std::vector<int32_t>{2, 1, 2});
  for (int i = 0; i < 2; ++i) {
    std::vector<float> logits(5);
    EXPECT_EQ(sampler.sample(logits).value().token, 1);
  }
  const std::vector<TokenEdit> edits = sampler.edits(5).value().tokens;
  ASSERT_EQ(edits.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(edits[i].token, static_cast<int32_t>(i) + 1);
  const float biases[] = {9, 0, 1}, penalties[] = {1.25F, 0, 0};
  const double repetitions[] = {2, 2, 1};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(edits[i].bias, biases[i]) << i;
    EXPECT_EQ(edits[i].penalty, penalties[i]) << i;
    EXPECT_EQ(edits[i].repetition, repetitions[i]) << i;
  }
}

// Each step's edits are those of a sampler that gets the window as a prompt and an answer of its own.
TEST(Sampler, PenaltiesLookAtTheirWindow) {
  const std::vector<int32_t> prompt = {3, 1, 1, 2, 4, 1};
  const std::vector<int32_t> said = {1, 0, 1, 1, 3, 0, 0, 0, 2, 4, 4, 1};
  for (const int window : {1, 2, 3, 5, 7, 100}) {
    SamplingParams params{.temperature = 0,
                          .repetition_penalty = 1.5,
                          .presence_penalty = 0.25,
                          .frequency_penalty = 0.5,
                          .penalty_window = window};
    Sampler sampler(params, prompt);
    params.penalty_window = 0;
    for (size_t n = 0; n <= said.size(); ++n) {
      const size_t mine = std::min<size_t>(n, window), theirs = std::min(prompt.size(), window - mine);
      Sampler lone(params, std::span(prompt).last(theirs));
      for (size_t i = n - mine; i < n; ++i) ASSERT_TRUE(lone.take({.token = said[i]}).ok());
      const std::vector<TokenEdit> got = sampler.edits(5).value().tokens, want = lone.edits(5).value().tokens;
      ASSERT_EQ(got.size(), want.size()) << window << " " << n;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].token, want[i].token);
        EXPECT_EQ(got[i].repetition, want[i].repetition);
        EXPECT_EQ(got[i].penalty, want[i].penalty);
      }
      if (n == said.size()) break;
      ASSERT_TRUE(sampler.take({.token = said[n]}).ok());
    }
  }
}

// Without a repetition penalty the prompt does not count, but it takes no place of the answer either.
TEST(Sampler, AWindowOfTheAnswerAlone) {
  Sampler sampler({.temperature = 0, .frequency_penalty = 1, .penalty_window = 2},
                  std::vector<int32_t>{1, 1, 1});
  for (const int32_t token : {1, 2, 3}) ASSERT_TRUE(sampler.take({.token = token}).ok());
  const std::vector<TokenEdit> edits = sampler.edits(5).value().tokens;
  ASSERT_EQ(edits.size(), 2u);
  EXPECT_EQ(edits[0].token, 2);
  EXPECT_EQ(edits[1].token, 3);
}

TEST(Sampler, Logprobs) {
  std::vector<float> logits = normal_logits(50, 2, 9);
  const std::vector<float> copy = logits;
  const SampledToken t =
      Sampler({.temperature = 0, .logit_bias = {{7, 50.0f}}, .top_logprobs = 3}, {}).sample(logits).value();
  double sum = 0;
  for (const float v : copy) sum += std::exp(double{v});
  EXPECT_EQ(t.token, 7);
  EXPECT_NEAR(t.logprobs.logprob, copy[7] - std::log(sum), 1e-6);  // the model's, without the bias
  ASSERT_EQ(t.logprobs.top.size(), 3u);
  EXPECT_GE(t.logprobs.top[0].second, t.logprobs.top[1].second);
  EXPECT_NEAR(t.logprobs.top[0].second, *std::max_element(copy.begin(), copy.end()) - std::log(sum), 1e-6);
}

TEST(Sampler, BadNumbersAreErrors) {
  std::vector<float> logits = {0, NAN};
  EXPECT_FALSE(Sampler({}, {}).sample(logits).ok());
  for (const SamplingParams& p : std::vector<SamplingParams>{{.temperature = NAN},
                                                             {.temperature = -1},
                                                             {.top_p = 0},
                                                             {.top_k = -1},
                                                             {.min_p = 2},
                                                             {.repetition_penalty = 0},
                                                             {.logit_bias = {{99, 0.0f}}},
                                                             {.stop_strings = {""}}}) {
    EXPECT_FALSE(validate(p, 50).ok());
  }
}

}  // namespace
}  // namespace moesaic
