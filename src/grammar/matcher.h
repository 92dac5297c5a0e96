// An answer on its way through its grammar, token by token.
#pragma once

#include <list>
#include <memory>
#include <span>
#include <string>

#include "grammar/token_masks.h"
#include "moesaic/answer_grammar.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

// The masks of one grammar, for all answers that follow it.
struct SharedMasks {
  std::shared_ptr<const CompiledGrammar> grammar;
  std::shared_ptr<const TokenTrie> trie;
  std::shared_ptr<TokenMasks> masks;
};

// Copyable. One thread at a time uses the matchers of a MaskCache.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<SharedMasks> shared);

  // The tokens that may come next, one bit each, the lowest first; what lies behind the span may not. Valid
  // until the next call. Fails where none may: the grammar is too ambiguous to be followed any further, or
  // the vocabulary lacks the bytes that must come.
  Result<std::span<const uint64_t>> allowed();
  void take(int32_t token);

 private:
  std::shared_ptr<SharedMasks> shared_;
  std::shared_ptr<TokenMasks> masks_;
  TokenMasks::Situation at_;
};

// The masks of the grammars that were used last, for one vocabulary.
class MaskCache {
 public:
  static constexpr size_t kKeptGrammars = 16;

  // The tokenizer must outlive the cache and its matchers.
  explicit MaskCache(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  // The first call takes a moment to sort the vocabulary.
  Matcher matcher(const AnswerGrammar& grammar);

 private:
  const Tokenizer* tokenizer_;
  std::shared_ptr<const TokenTrie> trie_;
  std::list<std::shared_ptr<SharedMasks>> used_;  // the last one used first
};

}  // namespace moesaic::grammar
