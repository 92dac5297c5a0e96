#include "grammar/mask_cache.h"

#include <algorithm>

#include "grammar/compiled_grammar.h"

namespace moesaic::grammar {

std::shared_ptr<SharedMasks> MaskCache::masks_of(const AnswerGrammar& grammar) {
  const auto& compiled = grammar.compiled();
  const auto at = std::find_if(used_.begin(), used_.end(),
                               [&](const auto& shared) { return shared->grammar->key == compiled->key; });
  if (at != used_.end()) {
    used_.splice(used_.begin(), used_, at);
    return used_.front();
  }
  auto shared = std::make_shared<SharedMasks>();
  shared->grammar = compiled;
  shared->trie = trie_;
  used_.push_front(std::move(shared));
  if (used_.size() > kKeptGrammars) {
    threads_->discard(std::move(used_.back()));
    used_.pop_back();
  }
  return used_.front();
}

}  // namespace moesaic::grammar
