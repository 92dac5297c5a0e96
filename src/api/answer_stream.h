// Sorts the tokens of one answer into text: harmony's channels or plain text, stop strings taken out.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/stop_filter.h"
#include "moesaic/types.h"
#include "text/detokenizer.h"
#include "text/harmony_parser.h"

namespace moesaic {

struct StopRules {
  int min_tokens = 0;                                   // tokens among which stop strings do not count
  bool include_stop = false, skip_special = false;      // as in SamplingParams
  std::function<bool(const Message&)> ends_after = {};  // as in GenerationRequest
};

// The pieces of a truncated answer are always a prefix of those of the whole answer, but for a channel's name
// that waited (HarmonyParser). To ensure it, three things are held back: a tool call until it is complete,
// the bytes of an incomplete character, and text that may begin a stop string. A stop token of the caller's
// releases the latter two, and any other end of the output none.
class AnswerStream {
 public:
  // chat: the tokens are harmony; stop strings then do not count in analysis and tool calls. The tokenizer
  // must outlive the stream.
  AnswerStream(const Tokenizer& tokenizer, bool chat, std::vector<std::string> stop_strings,
               const StopRules& rules = {});

  // Chat, before any push: see HarmonyParser. Of the prompt's last message, pieces and messages have what the
  // answer adds.
  void continue_from(std::span<const int32_t> prompt) { parser_.continue_from(prompt); }

  // ends: a stop token, which is no text unless the rules say so. A piece is empty only for a tool call
  // without text.
  std::vector<TextPiece> push(int32_t token, bool ends);
  // Ends the output. Returns a channel's name that waited.
  std::vector<TextPiece> finish();
  // A stop string is complete.
  bool stopped() const { return stop_.stopped(); }
  const std::string& stop_string() const { return stop_.found(); }
  // Chat: what comes from here on is no part of the answer. The model goes on in another's name, or the rules
  // end the answer here.
  bool over() const { return over_; }
  // chat: see HarmonyParser.
  int recoveries() const { return parser_.recoveries(); }
  // Chat: the complete messages; after finish() also the last one as far as it goes, unless it is a call.
  // Their text is that of the pieces.
  const std::vector<Message>& messages() const { return messages_; }

 private:
  using Pieces = std::vector<TextPiece>;

  // Without stop strings, and without what may be the beginning of one. Text of the first min_tokens tokens,
  // which may come out later, stays as it is.
  std::string filtered(const std::string& text);
  void add_all(const std::vector<HarmonyEvent>& events, Pieces& pieces);
  void add_piece(TextPiece piece, Pieces& pieces);
  void add_answer(std::string text, Pieces& pieces);
  void add_text(const Message& delta, Pieces& pieces);
  void add_call(const Message& call, Pieces& pieces);
  void add(const HarmonyEvent& event, Pieces& pieces);

  bool is_text(int32_t token, bool ends) const;

  const Tokenizer* tokenizer_;
  bool chat_;
  StopRules rules_;
  int pushed_ = 0;                             // tokens
  size_t counted_ = 0;                         // bytes of the tokens among which stop strings count
  bool text_counts_ = rules_.min_tokens == 0;  // stop strings count in all text from here on
  bool begins_ = true;                         // the next piece is its message's first
  bool over_ = false;
  std::string answer_channel_;  // the channel of the text that the filter holds
  std::string answer_;          // text of the open message that left the filter
  std::string held_;            // text of the call that is not complete
  HarmonyParser parser_;
  StreamDecoder decoder_;
  StopFilter stop_;
  std::vector<Message> messages_;
};

}  // namespace moesaic
