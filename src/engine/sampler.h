// A sampler gets from logits to a token. Its steps have the usual order: the caller's change, bias,
// penalties, allowed tokens, grammar, forbidden tokens, temperature, top-k, top-p, min-p. Last, the request's
// override may put another token in its place, which only a grammar can prevent.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/batch.h"
#include "core/logit_edits.h"
#include "engine/token_override.h"
#include "grammar/mask_thread.h"
#include "moesaic/status.h"
#include "moesaic/types.h"

namespace moesaic {

// A caller may change the logits before everything else; -infinity forbids a token.
using LogitsChange = std::function<void(std::span<float> logits)>;

// Fails with one line for the first parameter out of range (NaN included) or token outside the vocabulary.
Status validate(const SamplingParams& params, int vocab);

// Returns those of a token and of the `count` likeliest ones, or of all if there are fewer. logits: finite.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count);

// A sampler has the state of one request. The random number of step n depends on seed and n alone, so that a
// request gives the same tokens whatever runs beside it.
class Sampler {
 public:
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt);

  // From here on only tokens that go on with an answer of this grammar are sampled.
  void follow(grammar::AsyncMatcher matcher) { matcher_.emplace(std::move(matcher)); }
  // From here on the override decides what is said.
  void follow(std::unique_ptr<TokenOverride> override) { override_ = std::move(override); }
  // True if sample() may be called; false: the grammar's next mask is still being computed.
  bool ready() const { return !matcher_ || matcher_->ready(); }
  void wait_until(std::chrono::steady_clock::time_point deadline) const { matcher_->wait_until(deadline); }
  // Picks the next token; take() has to follow. logits: [vocab], changed. -1 if one of them is not finite.
  // Fails if `change` leaves one that is NaN or +infinity, or no token is allowed. Several threads may pick
  // for several requests.
  Result<SampledToken> pick(std::span<float> logits, const LogitsChange& change = {}) const;
  // Picks and takes.
  Result<SampledToken> sample(std::span<float> logits, const LogitsChange& change = {});
  // Says how a backend samples the same token from the same logits. ahead: tokens that it has sampled since
  // take(). Nothing: it cannot, as penalties, biases, grammars, forbidden tokens and places where the
  // override may act depend on these tokens.
  std::optional<DeviceSampling> device_sampling(int ahead) const;
  // Says the same, except for penalties, biases, grammars and forbidden tokens: edits() says these once the
  // tokens before are taken. Nothing: the override may act.
  std::optional<DeviceSampling> edited_sampling(int ahead) const;
  // Returns how the next token's logits are changed before it is sampled. vocab: of the logits. logits: where
  // the caller has forbidden some, else none. A token that only bad words or min_tokens forbid is allowed
  // where no other is left. To be called while ready(). Fails if no token is allowed.
  Result<LogitEdits> edits(size_t vocab, std::span<const float> logits = {}) const;
  // Says the same to a drafter, even if penalties and the like will change the logits.
  DeviceSampling draft_sampling(int ahead) const;
  // Takes what was picked, here or there, and remembers it for the penalties; -1: a logit was not finite.
  Result<SampledToken> take(SampledToken sampled);

 private:
  bool adjusts() const;
  Status no_token() const;
  // True if penalties, biases, a grammar or forbidden tokens change them.
  bool changes_logits(uint64_t step) const;
  void remember(int32_t token);
  // Biases and penalties.
  std::vector<TokenEdit> token_edits() const;
  // Returns the mask of the list of allowed tokens and of the grammar.
  Result<std::vector<uint64_t>> allowed(size_t vocab) const;
  bool may_follow(int32_t token) const;
  // Returns stop tokens before min_tokens, and the ends of bad words.
  std::vector<int32_t> forbidden() const;
  // Returns the token that is said if this one was sampled.
  int32_t said_for(int32_t sampled) const;

  SamplingParams params_;
  using Counts = std::vector<std::pair<int32_t, int>>;  // token and times, ascending
  static void count(Counts& counts, int32_t token, int times);
  // Forgets the first token that the penalties look at.
  void forget_first();

  std::vector<uint64_t> listed_;   // the allowed tokens as a mask, empty where all are
  Counts generated_;               // only kept for penalties
  Counts prompt_;                  // only kept for a repetition penalty
  std::deque<int32_t> looked_at_;  // with a penalty window: its tokens
  size_t of_prompt_ = 0;           // so many of them are the prompt's
  std::optional<grammar::AsyncMatcher> matcher_;
  std::unique_ptr<TokenOverride> override_;
  std::vector<int32_t> said_;  // generated tokens, only kept for bad words
  uint64_t step_ = 0;
};

}  // namespace moesaic
