// The masks of the grammars that were used last, for one vocabulary.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "grammar/mask_thread.h"

namespace moesaic::grammar {

// One thread at a time. Its matchers may outlive it.
class MaskCache {
 public:
  static constexpr size_t kKeptGrammars = 16;

  // The tokenizer must outlive the cache and its matchers.
  explicit MaskCache(const Tokenizer& tokenizer) : trie_(std::make_shared<SharedTrie>(tokenizer)) {}
  // Quick: what takes time is done by the matcher's first call.
  Matcher matcher(const AnswerGrammar& grammar) { return Matcher(masks_of(grammar)); }
  // client: whose request it is; clients take turns.
  AsyncMatcher async_matcher(const AnswerGrammar& grammar, std::string client = {}) {
    return {matcher(grammar), std::move(client), threads_};
  }

 private:
  std::shared_ptr<SharedMasks> masks_of(const AnswerGrammar& grammar);

  std::shared_ptr<SharedTrie> trie_;
  std::shared_ptr<MaskThreads> threads_ = std::make_shared<MaskThreads>();
  std::list<std::shared_ptr<SharedMasks>> used_;  // the last one used first
};

}  // namespace moesaic::grammar
