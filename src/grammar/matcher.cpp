#include "grammar/matcher.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/compiled_grammar.h"

namespace moesaic::grammar {
namespace {

std::shared_ptr<TokenMasks> fresh_masks(const SharedMasks& shared) {
  return std::make_shared<TokenMasks>(shared.grammar->automaton, shared.grammar->rule, shared.trie->get(),
                                      TokenMasks::kMaskWork, &shared.trie->sharers());
}

Status too_costly() {
  return error(
      StatusCode::kUnsupported,
      "the answer's grammar is too costly to follow here: it is too ambiguous, nests too deep, or has too "
      "many alternatives");
}

}  // namespace

const TokenTrie& SharedTrie::get() {
  std::call_once(made_, [this] { trie_.emplace(tokenizer_); });
  return *trie_;
}

// Sees to it that masks_ can be used, or fails. False: that is no quick work.
bool Matcher::prepare(Effort effort) {
  if (mask_ || (masks_ != nullptr && !masks_->full())) return true;
  if (effort == Effort::kQuick && (masks_ != nullptr || shared_->masks == nullptr)) return false;
  // The first matcher to notice makes the new masks; the others follow, and the last one frees the old.
  if (shared_->masks == nullptr || shared_->masks->full()) shared_->masks = fresh_masks(*shared_);
  const auto at = masks_ == nullptr ? shared_->masks->start() : shared_->masks->adopt(*masks_, at_);
  if (!at) failure_ = too_costly();
  at_ = at.value_or(TokenMasks::kNowhere);
  masks_ = shared_->masks;
  masks_->begin(effort);
  return true;
}

Progress Matcher::take_first() {
  TokenMasks::Situation to = TokenMasks::kNowhere;
  for (const std::string& string : shared_->trie->get().strings(taken_.front())) {
    if (to != TokenMasks::kNowhere) break;
    if (const Progress made = masks_->after(at_, string, to); made != Progress::kDone) return made;
  }
  at_ = to;
  taken_.pop_front();
  return Progress::kDone;
}

std::optional<Result<std::span<const uint64_t>>> Matcher::allowed(Effort effort) {
  Progress made = Progress::kDone;
  if (masks_ != nullptr) masks_->begin(effort);
  while (failure_.ok() && made == Progress::kDone && !taken_.empty()) {
    mask_.reset();
    if (!prepare(effort)) return {};
    if (failure_.ok()) made = take_first();
  }
  if (made == Progress::kDone && !prepare(effort)) return {};
  if (failure_.ok() && made == Progress::kDone) {
    if (!mask_) mask_.emplace(at_);
    made = masks_->advance(*mask_);
  }
  if (made == Progress::kPaused) return {};
  if (made == Progress::kTooCostly) failure_ = too_costly();
  if (!failure_.ok()) return failure_;
  const auto tokens = mask_->tokens();
  if (std::any_of(tokens.begin(), tokens.end(), [](uint64_t word) { return word != 0; })) return tokens;
  return error(StatusCode::kUnsupported,
               "the answer's grammar allows no further token: the vocabulary lacks what must come");
}

Result<std::span<const uint64_t>> Matcher::allowed() {
  while (true)
    if (const auto tokens = allowed(Effort::kSlice)) return *tokens;
}

}  // namespace moesaic::grammar
