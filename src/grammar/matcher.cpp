#include "grammar/matcher.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/compiled_grammar.h"

namespace moesaic::grammar {
namespace {

std::shared_ptr<TokenMasks> fresh_masks(const SharedMasks& shared) {
  return std::make_shared<TokenMasks>(shared.grammar->automaton, shared.grammar->rule, shared.trie->get());
}

}  // namespace

const TokenTrie& SharedTrie::get() {
  std::call_once(made_, [this] { trie_.emplace(tokenizer_); });
  return *trie_;
}

// Sees to it that masks_ can be used. False: that is no quick work.
bool Matcher::prepare(Effort effort) {
  if (masks_ != nullptr && !masks_->full()) return true;
  if (effort == Effort::kQuick && (masks_ != nullptr || shared_->masks == nullptr)) return false;
  // The first matcher to notice makes the new masks; the others follow, and the last one frees the old.
  if (shared_->masks == nullptr || shared_->masks->full()) shared_->masks = fresh_masks(*shared_);
  at_ = masks_ == nullptr ? shared_->masks->start() : shared_->masks->adopt(*masks_, at_);
  masks_ = shared_->masks;
  return true;
}

std::optional<Result<std::span<const uint64_t>>> Matcher::allowed(Effort effort) {
  if (!prepare(effort)) return {};
  const auto mask = masks_->mask(at_, effort);
  if (!mask) return {};
  if (std::any_of(mask->begin(), mask->end(), [](uint64_t word) { return word != 0; })) return *mask;
  return error(StatusCode::kUnsupported,
               "the answer's grammar allows no further token: its schema is too ambiguous");
}

bool Matcher::take(int32_t token, Effort effort) {
  if (!prepare(effort)) return false;
  TokenMasks::Situation to = TokenMasks::kNowhere;
  for (const std::string& string : shared_->trie->get().strings(token)) {
    if (to != TokenMasks::kNowhere) break;
    const auto after = masks_->after(at_, string, effort);
    if (!after) return false;
    to = *after;
  }
  at_ = to;
  return true;
}

}  // namespace moesaic::grammar
