// Turns the tokens of one generation into what a person sees and what a program reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/answer_stream.h"

namespace moesaic::app {

struct Answer {
  std::string text, reasoning;
  std::vector<Message> messages;  // harmony: what the model said, for the next turn
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
  Listener(AnswerStream stream, Printer printer) : stream_(std::move(stream)), printer_(printer) {}

  // ends: a stop token. False: a stop string is complete.
  bool token(int32_t token, bool ends);
  Answer finish();
  bool stopped() const { return stream_.stopped(); }

 private:
  void show(const std::vector<TextPiece>& pieces);

  AnswerStream stream_;
  Printer printer_;
  Answer answer_;
};

}  // namespace moesaic::app
