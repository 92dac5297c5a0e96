// What a model writes in OpenAI's harmony format, parsed token by token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/harmony.h"
#include "text/tokenizer.h"

namespace moesaic {

struct HarmonyEvent {
  enum class Kind {
    kText,        // message.text is what this token added; the other fields are those of the open message
    kMessageEnd,  // the whole message
    kToolCall,    // the same, for an assistant's message with a recipient
    kDone         // the turn is over, see reason
  };
  enum class Reason {
    kNone,
    kReturn,     // <|return|>: the answer is complete
    kCall,       // <|call|>: a tool is to be called
    kEndOfText,  // <|endoftext|>
    kTruncated   // finish() before any of these
  };
  Kind kind;
  Reason reason = Reason::kNone;
  Message message;
};

// Begins where render_conversation ends, behind <|start|>assistant. No output is an error: what does not
// follow the format is read as the nearest thing that does, and counted. Text where a message should begin,
// or a header of more than kMaxHeaderTokens, is an assistant's final answer. The tokenizer must outlive the
// parser.
class HarmonyParser {
 public:
  static constexpr int kMaxHeaderTokens = 128;

  explicit HarmonyParser(const Tokenizer& tokenizer);

  // In order; none after kDone.
  std::vector<HarmonyEvent> push(int32_t token);
  // The output has ended, by a limit or by a stop token that was not pushed.
  std::vector<HarmonyEvent> finish();

  bool done() const { return state_ == State::kDone; }
  // How often the output did not follow the format so far.
  int recoveries() const { return recoveries_; }

 private:
  enum class State { kExpectStart, kHeader, kContent, kDone };
  // Which part of a header its text belongs to.
  enum class Part { kRole, kChannel, kConstrain };
  using Events = std::vector<HarmonyEvent>;

  void push_in_header(int32_t token, Events& events);
  void push_in_content(int32_t token, Events& events);
  void push_before_start(int32_t token, Events& events);
  void open_header(const std::string& role);
  void open_content();
  void header_as_content(Events& events);
  void add_text(std::string text, Events& events);
  void close_message(Events& events);
  void stop(int32_t token, Events& events);
  void end_turn(HarmonyEvent::Reason reason, Events& events);
  void read_words(const std::string& text, Part part);
  bool is_stop(int32_t token) const;
  std::string& part_text() { return header_[static_cast<int>(part_)]; }

  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
  int32_t start_, end_, message_token_, channel_, constrain_, return_, call_, end_of_text_;  // -1: absent
  State state_ = State::kHeader;
  Message message_;
  std::string header_[3];  // by Part
  Part part_ = Part::kRole;
  int header_tokens_ = 0;
  int recoveries_ = 0;
};

}  // namespace moesaic
