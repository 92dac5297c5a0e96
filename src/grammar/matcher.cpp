#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "grammar/compiled_grammar.h"

namespace moesaic::grammar {
namespace {

std::shared_ptr<TokenMasks> fresh_masks(const SharedMasks& shared) {
  return std::make_shared<TokenMasks>(shared.grammar->automaton, shared.grammar->rule, *shared.trie);
}

}  // namespace

Matcher::Matcher(std::shared_ptr<SharedMasks> shared)
    : shared_(std::move(shared)), masks_(shared_->masks), at_(masks_->start()) {}

Result<std::span<const uint64_t>> Matcher::allowed() {
  if (masks_->full()) {
    // The first matcher to notice makes the new masks; the others follow, and the last one frees the old.
    if (shared_->masks->full()) shared_->masks = fresh_masks(*shared_);
    at_ = shared_->masks->adopt(*masks_, at_);
    masks_ = shared_->masks;
  }
  const std::span<const uint64_t> mask = masks_->mask(at_);
  if (std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; })) return mask;
  return error(StatusCode::kUnsupported,
               "the answer's grammar allows no further token: its schema is too ambiguous");
}

void Matcher::take(int32_t token) {
  const TokenMasks::Situation from = std::exchange(at_, TokenMasks::kNowhere);
  for (const std::string& string : shared_->trie->strings(token))
    if (at_ == TokenMasks::kNowhere) at_ = masks_->after(from, string);
}

Matcher MaskCache::matcher(const AnswerGrammar& grammar) {
  const auto& compiled = grammar.compiled();
  const auto at = std::find_if(used_.begin(), used_.end(),
                               [&](const auto& shared) { return shared->grammar->key == compiled->key; });
  if (at != used_.end()) {
    used_.splice(used_.begin(), used_, at);
    return Matcher(used_.front());
  }
  if (!trie_) trie_ = std::make_shared<TokenTrie>(*tokenizer_);
  auto shared = std::make_shared<SharedMasks>(SharedMasks{compiled, trie_, nullptr});
  shared->masks = fresh_masks(*shared);
  used_.push_front(std::move(shared));
  if (used_.size() > kKeptGrammars) used_.pop_back();
  return Matcher(used_.front());
}

}  // namespace moesaic::grammar
