// Sorts the tokens of one answer into text: harmony's channels or plain text, stop strings taken out.
#pragma once

#include <string>
#include <vector>

#include "engine/stop_filter.h"
#include "moesaic/types.h"
#include "text/detokenizer.h"
#include "text/harmony_parser.h"

namespace moesaic {

class AnswerStream {
 public:
  // chat: the tokens are harmony, from behind <|start|>assistant; stop strings then do not count in analysis,
  // commentary and tool calls. The tokenizer must outlive the stream.
  AnswerStream(const Tokenizer& tokenizer, bool chat, std::vector<std::string> stop_strings);

  // ends: a stop token, which is no text. A piece is empty only for a tool call without text.
  std::vector<TextPiece> push(int32_t token, bool ends);
  // The output has ended: what was held back.
  std::vector<TextPiece> finish();
  // A stop string is complete.
  bool stopped() const { return stop_.stopped(); }
  // chat: see HarmonyParser.
  int recoveries() const { return parser_.recoveries(); }
  // The messages that are complete, chat only.
  const std::vector<Message>& messages() const { return messages_; }

 private:
  void add_piece(TextPiece piece, std::vector<TextPiece>& pieces);
  void add_answer(const std::string& text, std::vector<TextPiece>& pieces);
  void add(const HarmonyEvent& event, std::vector<TextPiece>& pieces);

  bool chat_;
  bool begins_ = true;          // the next piece is its message's first
  std::string answer_channel_;  // of what the filter holds
  HarmonyParser parser_;
  StreamDecoder decoder_;
  StopFilter stop_;
  std::vector<Message> messages_;
};

}  // namespace moesaic
