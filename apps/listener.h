// Turns the text of one answer into what a person sees and what a program reads.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/paragraphs.h"
#include "chat/markdown.h"
#include "chat/word_wrap.h"
#include "moesaic/conversation.h"
#include "moesaic/types.h"

namespace moesaic::app {

// An answer by channel, for `run -o json`.
struct AnswerText {
  std::string text, reasoning;
  nlohmann::ordered_json tool_calls = nlohmann::ordered_json::array();
};

struct PrinterOptions {
  bool enabled = true;          // false prints nothing
  bool show_reasoning = false;  // even if standard error is no terminal
  bool markdown = true;         // shown as such, if standard output is a terminal
};

// Shows text as it comes: answers on standard output, reasoning on standard error. On a terminal answers are
// shown as the Markdown that they are, reasoning is dimmed, and control characters do not get through;
// elsewhere every byte does. Lines are broken between words. Without styles (NO_COLOR, TERM=dumb) Markdown
// stays as it is, and words mark where reasoning begins and ends.
class Printer {
 public:
  explicit Printer(const PrinterOptions& options);
  void answer(const std::string& text);
  void reasoning(const std::string& text);
  void finish();

 private:
  void end_reasoning();
  std::string shown(const std::string& text);

  bool enabled_, reasoning_;
  bool to_terminal_, dim_;
  std::optional<chat::Markdown> markdown_;
  chat::WordWrap thoughts_;
  bool open_ = false;  // reasoning was shown and its line has not ended
};

class Listener {
 public:
  explicit Listener(Printer printer) : printer_(std::move(printer)) {}

  void text(const TextPiece& piece);
  // messages: the answer's, of which some may be calls.
  AnswerText finish(const std::vector<Message>& messages);

 private:
  Printer printer_;
  AnswerText answer_;
  Paragraphs text_, reasoning_;
};

}  // namespace moesaic::app
