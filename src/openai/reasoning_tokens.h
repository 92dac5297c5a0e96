// The number of an answer's tokens that are reasoning.
#pragma once

#include <utility>

#include "openai/answer.h"
#include "openai/special_tokens.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {

// A token without text, such as a part of a character, belongs to the text that comes next; at the end of the
// answer, to the text before it. Headers belong to none.
class ReasoningTokens {
 public:
  void add(const AnswerEvent& event, const SpecialTokens& special, const Callable& functions) {
    if (event.token) ++waiting_;
    for (const TextPiece& piece : event.pieces) {
      reasons_ = piece.channel == "analysis" && functions.name_of(piece.recipient).empty();
      const int shown = std::exchange(waiting_, 0);
      if (reasons_) count_ += shown;
    }
    if (event.token && special.has(event.token->token)) waiting_ = 0, reasons_ = false;
    if (event.end && reasons_) count_ += std::exchange(waiting_, 0);
  }
  int count() const { return count_; }

 private:
  int count_ = 0, waiting_ = 0;  // waiting_: tokens since the last text or special token
  bool reasons_ = false;         // the open message's text so far is reasoning
};

}  // namespace moesaic::openai
