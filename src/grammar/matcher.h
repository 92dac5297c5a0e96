// An answer on its way through its grammar, token by token.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "grammar/token_masks.h"
#include "moesaic/answer_grammar.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

// A tokenizer's tree, made when it is first asked for, and who shares the memory for masks over it.
class SharedTrie {
 public:
  explicit SharedTrie(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  const TokenTrie& get();
  MaskSharers& sharers() { return sharers_; }

 private:
  MaskSharers sharers_;
  const Tokenizer& tokenizer_;
  std::once_flag made_;
  std::optional<TokenTrie> trie_;
};

// The masks of one grammar, for all answers that follow it. Null until a matcher first needs them.
struct SharedMasks {
  std::shared_ptr<const CompiledGrammar> grammar;
  std::shared_ptr<SharedTrie> trie;
  std::shared_ptr<TokenMasks> masks;
  std::mutex mutex;  // held by the matcher that uses `masks`
};

// Copyable. Matchers of one grammar share its masks: one at a time may work, and lock() says which.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<SharedMasks> shared) : shared_(std::move(shared)) {}

  std::unique_lock<std::mutex> lock() const { return std::unique_lock(shared_->mutex); }
  std::unique_lock<std::mutex> try_lock() const { return std::unique_lock(shared_->mutex, std::try_to_lock); }

  // Quick: the token is looked at with the next mask.
  void take(int32_t token) { taken_.push_back(token); }
  // The tokens that may come next, one bit each, the lowest first; what lies behind the span may not. Valid
  // until this matcher's next call. Nothing where the effort was not enough: the next call
  // goes on. Fails where no token may come, or where finding out costs too much time or memory.
  std::optional<Result<std::span<const uint64_t>>> allowed(Effort effort);
  // The same, however long it takes.
  Result<std::span<const uint64_t>> allowed();
  // The masks that serve it; null before the first call.
  const TokenMasks* masks() const { return masks_.get(); }

 private:
  bool prepare(Effort effort);
  Progress take_first();

  std::shared_ptr<SharedMasks> shared_;
  std::shared_ptr<TokenMasks> masks_;  // null before the first call
  TokenMasks::Situation at_ = TokenMasks::kNowhere;
  std::deque<int32_t> taken_;             // behind at_
  std::optional<TokenMasks::Mask> mask_;  // the mask at at_, in progress or done
  Status failure_;                        // once it has failed
};

}  // namespace moesaic::grammar
