#include "api/thinking_budget.h"

#include <algorithm>
#include <string_view>

namespace moesaic {
namespace {

constexpr const char* kToAnswer = "<|end|><|start|>assistant<|channel|>final<|message|>";
// The grammar has the rest: which functions there are, and what stands behind their names.
constexpr const char* kToCall = "<|end|><|start|>assistant<|channel|>commentary to=functions";
// The words that a header which opens no analysis has behind <|channel|>.
constexpr std::string_view kOthers[] = {"final", "commentary", "to="};
constexpr int kMostOfCharacter = 3;   // tokens
constexpr int kMostTokens = 1 << 30;  // more than any context has

}  // namespace

std::unique_ptr<TokenOverride> ThinkingBudget::make(const Tokenizer& tokenizer,
                                                    std::span<const int32_t> prompt, int tokens,
                                                    bool must_call) {
  for (const char* name : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}) {
    if (!tokenizer.special_id(name)) return nullptr;
  }
  if (std::ranges::find(prompt, tokenizer.special_id("<|start|>").value()) == prompt.end()) return nullptr;
  std::unique_ptr<ThinkingBudget> made(new ThinkingBudget(tokenizer, tokens, must_call));
  made->parser_.continue_from(prompt);
  return made;
}

ThinkingBudget::ThinkingBudget(const Tokenizer& tokenizer, int tokens, bool must_call)
    : tokenizer_(&tokenizer),
      parser_(tokenizer),
      start_(tokenizer.special_id("<|start|>").value()),
      channel_(tokenizer.special_id("<|channel|>").value()),
      end_(tokenizer.special_id("<|end|>").value()),
      way_out_(tokenizer.encode(must_call ? kToCall : kToAnswer, true)),
      left_(std::min(tokens, kMostTokens)) {
  const auto channel = std::find(way_out_.begin(), way_out_.end(), channel_);
  behind_channel_ = static_cast<size_t>(channel - way_out_.begin()) + 1;
}

bool ThinkingBudget::ends_message(int32_t token) const {
  return token == end_ || token == start_ || token == channel_ || parser_.ends_turn(token);
}

// True for a first token of a channel's name. A name that is none of harmony's is read as analysis.
bool ThinkingBudget::begins_analysis(int32_t token) const {
  std::string_view word = tokenizer_->token_bytes(token);
  word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
  if (tokenizer_->is_special(token) || word.empty()) return false;
  return std::ranges::none_of(
      kOthers, [&](std::string_view other) { return other.starts_with(word) || word.starts_with(other); });
}

std::optional<size_t> ThinkingBudget::forced_for(int32_t sampled) const {
  if (at_ > 0) return at_;
  if (left_ > 0) return {};
  if (names_channel_ && begins_analysis(sampled)) return behind_channel_;
  const bool completes = parser_.mid_character() && more_ < kMostOfCharacter;
  if (!parser_.reasons() || ends_message(sampled) || completes) return {};
  return 0;
}

int32_t ThinkingBudget::instead_of(int32_t sampled) {
  forced_ = forced_for(sampled);
  return forced_ ? way_out_[*forced_] : sampled;
}

void ThinkingBudget::said(int32_t token) {
  const bool on_the_way = forced_ && token == way_out_[*forced_];
  at_ = on_the_way ? (*forced_ + 1) % way_out_.size() : 0;
  forced_.reset();
  follow(token);
}

// A header that turns out to be text counts when it does.
void ThinkingBudget::follow(int32_t token) {
  const int header = parser_.header_tokens();
  const bool reasoned = parser_.reasons();
  names_channel_ = header >= 0 && token == channel_;
  int thought = 0;
  for (const HarmonyEvent& event : parser_.push(token)) {
    const bool text = event.kind == HarmonyEvent::Kind::kText && HarmonyParser::is_reasoning(event.message);
    if (text && !reasoned) thought = std::max(1, header);
  }
  if (reasoned && parser_.reasons()) thought = 1;
  more_ = parser_.reasons() && left_ == 0 ? more_ + thought : 0;
  left_ = std::max(0, left_ - thought);
}

// From the text of another message to reasoning it takes two tokens at least (<|start|>, <|channel|>) before
// the one that may be replaced, and one from a header or between messages.
int ThinkingBudget::untouched() const {
  if (at_ > 0) return 0;
  if (parser_.reasons()) return left_;
  const int header = parser_.header_tokens();
  if (names_channel_ && left_ == 0) return 0;
  return header >= 0 || !parser_.in_content() ? 1 + std::max(0, left_ - std::max(0, header)) : 2 + left_;
}

}  // namespace moesaic
