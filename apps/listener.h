// Turns the text of one answer into what a person sees and what a program reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/conversation.h"
#include "moesaic/types.h"

namespace moesaic::app {

// An answer by channel, for `run -o json`.
struct AnswerText {
  std::string text, reasoning;
  nlohmann::ordered_json tool_calls = nlohmann::ordered_json::array();
};

// Shows text as it comes: answers on standard output, reasoning on standard error, dimmed if that is a
// terminal.
class Printer {
 public:
  // enabled: false prints nothing. show_reasoning: even if standard error is no terminal.
  Printer(bool enabled, bool show_reasoning);
  void answer(const std::string& text);
  void reasoning(const std::string& text);

 private:
  void end_reasoning();

  bool enabled_, terminal_, reasoning_;
  bool open_ = false;  // reasoning was shown and its line has not ended
};

class Listener {
 public:
  explicit Listener(Printer printer) : printer_(printer) {}

  void text(const TextPiece& piece);
  // messages: the answer's, of which some may be calls.
  AnswerText finish(const std::vector<Message>& messages);

 private:
  Printer printer_;
  AnswerText answer_;
};

}  // namespace moesaic::app
