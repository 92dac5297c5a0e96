#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::vector<uint64_t> whole_mask(size_t vocab) {
  std::vector<uint64_t> mask((vocab + 63) / 64, ~uint64_t{0});
  if (vocab % 64 != 0) mask.back() >>= 64 - vocab % 64;
  return mask;
}

// True if the mask has a token, one that is not -infinity where there are logits.
bool any_left(std::span<const uint64_t> mask, std::span<const float> logits) {
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    if (logits.empty()) return true;
    const auto part = logits.subspan(64 * word, std::min<size_t>(64, logits.size() - 64 * word));
    for (size_t i = 0; i < part.size(); ++i)
      if ((mask[word] >> i & 1) != 0 && part[i] > kNever) return true;
  }
  return false;
}

// A mask's word, of 64 tokens.
uint64_t word_of(std::span<const uint64_t> mask, size_t word) { return word < mask.size() ? mask[word] : 0; }

// SplitMix64 over (seed, step): a uniform number in [0, 1).
double uniform(uint64_t seed, uint64_t step) {
  uint64_t z = seed + (step + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

double least_of(const SamplingParams& p) {
  return p.min_p > 0 ? std::max(std::log(p.min_p), kNoChance) : kNoChance;
}

// A temperature is 0, for the likeliest token, or at least this.
constexpr double kLeastTemperature = 1e-3;
bool greedy(const SamplingParams& p) { return p.temperature == 0 || p.top_k == 1; }

Status apply(const LogitsChange& change, std::span<float> logits) {
  if (!change) return {};
  change(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]) && logits[i] != kNever)
      return invalid("change_logits made the logit of token {} {}; it may be finite, or -infinity", i,
                     logits[i]);
  }
  return {};
}

}  // namespace

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count) {
  const double normalizer = log_sum_exp(logits);
  TokenLogprobs out{.logprob = logits[token] - normalizer};
  for (const auto& [logit, id] : likeliest(logits, {}, static_cast<size_t>(count)))
    out.top.emplace_back(id, logit - normalizer);
  return out;
}

Status validate(const SamplingParams& p, int vocab) {
  // Written so that NaN fails every test.
  if (!(p.temperature >= 0 && p.temperature <= 100))
    return invalid("temperature {} is not between 0 and 100", p.temperature);
  if (!(p.top_p > 0 && p.top_p <= 1)) return invalid("top_p {} is not in (0, 1]", p.top_p);
  if (p.top_k < 0) return invalid("top_k {} is negative", p.top_k);
  if (!(p.min_p >= 0 && p.min_p <= 1)) return invalid("min_p {} is not between 0 and 1", p.min_p);
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100))
    return invalid("repetition_penalty {} is not in (0, 100]", p.repetition_penalty);
  if (!(std::fabs(p.presence_penalty) <= 2))
    return invalid("presence_penalty {} is not between -2 and 2", p.presence_penalty);
  if (!(std::fabs(p.frequency_penalty) <= 2))
    return invalid("frequency_penalty {} is not between -2 and 2", p.frequency_penalty);
  if (p.penalty_window < 0) return invalid("penalty_window {} is negative", p.penalty_window);
  if (p.max_tokens < 0) return invalid("max_tokens {} is negative", p.max_tokens);
  if (p.top_logprobs < -1 || p.top_logprobs > kMostLogprobs)
    return invalid("top_logprobs {} is not between 0 and {}, or -1", p.top_logprobs, kMostLogprobs);
  if (p.prompt_logprobs < -1 || p.prompt_logprobs > kMostLogprobs)
    return invalid("prompt_logprobs {} is not between 0 and {}, or -1", p.prompt_logprobs, kMostLogprobs);
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab)
      return invalid("logit_bias names token {}, outside the vocabulary of {}", token, vocab);
    if (!(std::fabs(bias) <= 1e4f)) return invalid("logit_bias of token {} is out of range", token);
  }
  if (p.min_tokens < 0) return invalid("min_tokens {} is negative", p.min_tokens);
  if (p.reasoning_budget < -1) return invalid("reasoning_budget {} is below -1", p.reasoning_budget);
  const auto outside = [&](int32_t token) { return token < 0 || token >= vocab; };
  for (const int32_t token : p.allowed_tokens) {
    if (outside(token)) return invalid("token {} is outside the vocabulary of {}", token, vocab);
  }
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (word.empty() || std::any_of(word.begin(), word.end(), outside))
      return invalid("a bad word is empty or has a token outside the vocabulary of {}", vocab);
  }
  for (const std::string& s : p.stop_strings) {
    if (s.empty() || s.size() > 4096) return invalid("a stop string is empty or longer than 4096 bytes");
  }
  return {};
}

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt) : params_(params) {
  for (const int32_t token : params_.allowed_tokens) {
    const auto word = static_cast<size_t>(token) / 64;
    if (word >= listed_.size()) listed_.resize(word + 1);
    listed_[word] |= uint64_t{1} << (token % 64);
  }
  if (params_.repetition_penalty == 1.0) return;
  if (params_.penalty_window > 0) {
    of_prompt_ = std::min(prompt.size(), static_cast<size_t>(params_.penalty_window));
    prompt = prompt.last(of_prompt_);
    looked_at_.assign(prompt.begin(), prompt.end());
  }
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  std::ranges::sort(tokens);
  for (auto at = tokens.begin(); at != tokens.end();) {
    const auto next = std::upper_bound(at, tokens.end(), *at);
    prompt_.emplace_back(*at, static_cast<int>(next - at));
    at = next;
  }
}

void Sampler::count(Counts& counts, int32_t token, int times) {
  const auto at = std::ranges::lower_bound(counts, token, {}, &std::pair<int32_t, int>::first);
  if (at == counts.end() || at->first != token) {
    counts.insert(at, {token, times});
  } else if ((at->second += times) == 0) {
    counts.erase(at);
  }
}

void Sampler::forget_first() {
  count(of_prompt_ > 0 ? prompt_ : generated_, looked_at_.front(), -1);
  of_prompt_ -= of_prompt_ > 0 ? 1 : 0;
  looked_at_.pop_front();
}

std::vector<TokenEdit> Sampler::token_edits() const {
  std::vector<TokenEdit> out;
  out.reserve(params_.logit_bias.size() + prompt_.size() + generated_.size());
  const auto add = [&](const auto& entries, const auto& edit_of) {
    const auto before = std::ssize(out);
    for (const auto& entry : entries) out.push_back(edit_of(entry));
    std::inplace_merge(out.begin(), out.begin() + before, out.end(),
                       [](const TokenEdit& a, const TokenEdit& b) { return a.token < b.token; });
  };
  add(params_.logit_bias, [](const auto& e) { return TokenEdit{.token = e.first, .bias = e.second}; });
  add(prompt_,
      [&](const auto& e) { return TokenEdit{.token = e.first, .repetition = params_.repetition_penalty}; });
  add(generated_, [&](const auto& e) {
    return TokenEdit{
        .token = e.first,
        .repetition = params_.repetition_penalty,
        .penalty = static_cast<float>(params_.presence_penalty + params_.frequency_penalty * e.second)};
  });
  size_t kept = 0;
  for (const TokenEdit& e : out) {
    if (kept == 0 || out[kept - 1].token != e.token) {
      out[kept++] = e;
      continue;
    }
    TokenEdit& same = out[kept - 1];
    same.bias += e.bias, same.penalty += e.penalty;
    if (e.repetition != 1.0) same.repetition = e.repetition;
  }
  out.resize(kept);
  return out;
}

Result<std::vector<uint64_t>> Sampler::allowed(size_t vocab) const {
  std::vector<uint64_t> mask = listed_.empty() ? whole_mask(vocab) : listed_;
  mask.resize((vocab + 63) / 64);
  if (!matcher_) return mask;
  ASSIGN_OR_RETURN(const std::span<const uint64_t> grammar, matcher_->allowed());
  for (size_t word = 0; word < mask.size(); ++word) mask[word] &= word_of(grammar, word);
  return mask;
}

std::vector<int32_t> Sampler::forbidden() const {
  std::vector<int32_t> tokens;
  if (step_ < static_cast<uint64_t>(params_.min_tokens)) tokens = params_.stop_tokens;
  for (const std::vector<int32_t>& word : params_.bad_words) {
    const auto before = std::ssize(word) - 1;
    if (before <= std::ssize(said_) && std::equal(said_.end() - before, said_.end(), word.begin()))
      tokens.push_back(word.back());
  }
  return tokens;
}

Result<LogitEdits> Sampler::edits(size_t vocab, std::span<const float> logits) const {
  LogitEdits out{.tokens = token_edits()};
  const std::vector<int32_t> never = forbidden();
  if (!matcher_ && params_.allowed_tokens.empty() && never.empty()) return out;
  ASSIGN_OR_RETURN(out.allowed, allowed(vocab));
  if (!any_left(out.allowed, logits)) return no_token();
  std::vector<uint64_t> mask = out.allowed;
  for (const int32_t token : never) {
    if (token >= 0 && static_cast<size_t>(token) < vocab)
      mask[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (token % 64));
  }
  if (any_left(mask, logits)) out.allowed = std::move(mask);
  return out;
}

// True if the grammar goes on with this token.
bool Sampler::may_follow(int32_t token) const {
  if (!matcher_) return true;
  const auto allowed = matcher_->allowed();
  return allowed.ok() && (word_of(allowed.value(), static_cast<size_t>(token) / 64) >> (token % 64) & 1) != 0;
}

Result<SampledToken> Sampler::pick(std::span<float> logits, const LogitsChange& change) const {
  if (!all_finite(logits)) return SampledToken{.token = -1};
  const bool wants_logprobs = params_.top_logprobs >= 0;
  std::vector<float> raw;
  if (wants_logprobs && (change || changes_logits(step_))) raw.assign(logits.begin(), logits.end());
  RETURN_IF_ERROR(apply(change, logits));
  ASSIGN_OR_RETURN(const LogitEdits edits, this->edits(logits.size(), logits));
  apply_edits(edits, logits);
  const int32_t token = choose_token(logits, {}, draft_sampling(0));
  if (token < 0) return no_token();
  SampledToken out{.token = said_for(token)};
  if (wants_logprobs)
    out.logprobs =
        logprobs_of(raw.empty() ? logits : std::span<const float>(raw), out.token, params_.top_logprobs);
  return out;
}

Result<SampledToken> Sampler::sample(std::span<float> logits, const LogitsChange& change) {
  ASSIGN_OR_RETURN(SampledToken picked, pick(logits, change));
  return take(std::move(picked));
}

int32_t Sampler::said_for(int32_t sampled) const {
  if (!override_) return sampled;
  const int32_t token = override_->instead_of(sampled);
  return may_follow(token) ? token : sampled;
}

Status Sampler::no_token() const { return invalid("at step {} the request allows no token", step_); }

std::optional<DeviceSampling> Sampler::device_sampling(int ahead) const {
  return changes_logits(step_ + ahead) ? std::nullopt : edited_sampling(ahead);
}

std::optional<DeviceSampling> Sampler::edited_sampling(int ahead) const {
  if (override_ && ahead >= override_->untouched()) return {};
  DeviceSampling sampling = draft_sampling(ahead);
  sampling.logprobs = params_.top_logprobs;
  return sampling;
}

DeviceSampling Sampler::draft_sampling(int ahead) const {
  return {.temperature = greedy(params_) ? 0 : std::max(params_.temperature, kLeastTemperature),
          .top_p = params_.top_p,
          .least = least_of(params_),
          .uniform = uniform(params_.seed, step_ + ahead),
          .top_k = params_.top_k};
}

Result<SampledToken> Sampler::take(SampledToken sampled) {
  if (sampled.token < 0) return error(StatusCode::kInternal, "a logit is NaN or infinite at step {}", step_);
  remember(sampled.token);
  return sampled;
}

void Sampler::remember(int32_t token) {
  if (adjusts()) {
    count(generated_, token, 1);
    if (params_.penalty_window > 0) {
      looked_at_.push_back(token);
      if (looked_at_.size() > static_cast<size_t>(params_.penalty_window)) forget_first();
    }
  }
  if (matcher_) matcher_->take(token);
  if (override_) override_->said(token);
  if (!params_.bad_words.empty()) said_.push_back(token);
  ++step_;
}

bool Sampler::adjusts() const {
  return !params_.logit_bias.empty() || params_.repetition_penalty != 1.0 || params_.presence_penalty != 0 ||
         params_.frequency_penalty != 0;
}

bool Sampler::changes_logits(uint64_t step) const {
  return adjusts() || matcher_ || !params_.allowed_tokens.empty() || !params_.bad_words.empty() ||
         step < static_cast<uint64_t>(params_.min_tokens);
}

}  // namespace moesaic
