// Parses token by token what a model writes in OpenAI's harmony format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/harmony.h"
#include "text/harmony_header.h"
#include "text/tokenizer.h"

namespace moesaic {

struct HarmonyEvent {
  enum class Kind {
    kText,        // message.text is what this token added; the other fields are those of the open message
    kMessageEnd,  // the whole message; kTruncated: what there is of it, which may be an unfinished call
    kToolCall,    // the same, for a complete message of the assistant to a tool
    kDone         // the turn is over, see reason
  };
  enum class Reason {
    kNone,
    kReturn,     // <|return|>: the answer is complete
    kCall,       // <|call|>: a tool is to be called
    kEndOfText,  // <|endoftext|>
    kForeign,    // the model goes on in somebody else's name
    kTruncated   // finish() before any of these
  };
  Kind kind;
  Reason reason = Reason::kNone;
  Message message;  // recipient: only of a call; the assistant's words to all have none
};

// Begins where render_conversation ends: behind <|start|>assistant, or with continue_from inside a message.
// No output is an error: what does not follow the format is read as the nearest thing that does, and counted.
// harmony_header.h has the rule for headers. Where the assistant's turn goes over into a message of another
// role, which the model has invented, it is over: nothing of that message is an event. The tokenizer must
// outlive the parser.
//
// A channel's name at the beginning of a message's text is left out if a <|message|> follows it, as the model
// writes it now and then. Text that may be such a name waits until the next token.
//
// A header that a stop token, or the <|start|> of another one, ends, or that has more than kMaxHeaderTokens,
// is a message without <|message|>.
//
// Where the output is cut off (finish), nothing is added to it: a header that has not ended is nothing, a
// call that has not ended is no kToolCall, and bytes of a character that is not complete are left out. So the
// text and the calls of a part of an output are always a beginning of those of the whole, but for a channel's
// name that waited.
class HarmonyParser {
 public:
  // A call's header fits with a function's name of 256 bytes, the most that AnswerFormat takes, even where
  // each byte is a token.
  static constexpr int kMaxHeaderTokens = 320;

  explicit HarmonyParser(const Tokenizer& tokenizer);

  // Before any push: the output goes on from this prompt. What the prompt's last message has already is no
  // event. Nothing changes where the prompt ends behind <|start|>assistant or in another's message, or is no
  // conversation.
  void continue_from(std::span<const int32_t> prompt);
  // In order; none after kDone.
  std::vector<HarmonyEvent> push(int32_t token);
  // The output ends whole, by a stop token that is not pushed; call it before finish(). kText of what waited
  // and of bytes of an incomplete character.
  std::vector<HarmonyEvent> flush();
  // The output was cut off: by a limit, a stop string, or a stop token that was not pushed. kText only of
  // what waited; no kToolCall.
  std::vector<HarmonyEvent> finish();

  // True if this token ends an answer: <|return|>, <|call|> or <|endoftext|>.
  bool ends_turn(int32_t token) const;
  bool done() const { return state_ == State::kDone; }
  // The number of times that the output did not follow the format so far.
  int recoveries() const { return recoveries_; }
  // True if a message's text is the assistant's thought, which is nobody else's to read or to run.
  static bool is_reasoning(const Message& message);
  // These tell whether the next token adds to a message's text, and whether that is reasoning.
  bool in_content() const { return state_ == State::kContent; }
  bool reasons() const { return in_content() && is_reasoning(message_); }
  // Tokens of the header that is open; -1: none is.
  int header_tokens() const { return state_ == State::kHeader ? header_tokens_ : -1; }
  // The text ends inside a character.
  bool mid_character() const { return decoder_.mid_character(); }

 private:
  enum class State { kExpectStart, kHeader, kContent, kDone };
  using Events = std::vector<HarmonyEvent>;

  bool is_stop(int32_t token) const;  // true if the token ends a message
  void push_in_header(int32_t token, Events& events);
  void push_in_content(int32_t token, Events& events);
  void push_before_start(int32_t token, Events& events);
  void open_header(bool after_start);
  void begin_part(HeaderPart::Kind kind, Events& events);
  void open_content(Events& events);
  void open_unfinished(bool ended_by_call, std::string_view unnamed, Events& events);
  void open_message(const HarmonyHeader& header);
  void say_aside(const HarmonyHeader& header, Events& events);
  bool is_foreign(bool complete) const;
  bool may_be_cut() const;
  void add_text(std::string text, Events& events);
  void add_or_hold(std::string text, Events& events);
  void close_message(HarmonyEvent::Reason reason, Events& events);
  void stop(int32_t token, Events& events);
  void end_turn(HarmonyEvent::Reason reason, Events& events);

  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
  int32_t start_, end_, message_token_, channel_, constrain_, return_, call_, end_of_text_;  // -1: absent
  State state_ = State::kHeader;
  Message message_;
  std::vector<std::string> names_;  // the channels', and what the first tokens of one are
  std::string held_;                // text that waits
  bool began_ = false;              // the open message had text that does not wait
  HeaderParts header_;
  bool after_start_ = false;  // the header that is read has a <|start|>, and so a role, of its own
  int header_tokens_ = 0;
  int recoveries_ = 0;
};

}  // namespace moesaic
