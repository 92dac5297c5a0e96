#include "text/harmony_parser.h"

#include <algorithm>
#include <sstream>

#include "text/utf8.h"

namespace moesaic {
namespace {

bool is_role(const std::string& word) {
  return word == "assistant" || word == "user" || word == "system" || word == "developer" || word == "tool";
}

bool is_content_type(const std::string& word) { return word == "json" || word == "code"; }

constexpr const char* kSpaces = " \t\r\n";

// Where the first word of a text ends, which JSON ends too. begin: where it begins.
size_t end_of_word(const std::string& text, size_t& begin) {
  begin = std::min(text.find_first_not_of(kSpaces), text.size());
  return std::min(text.find_first_of(" \t\r\n{[", begin), text.size());
}

}  // namespace

HarmonyParser::HarmonyParser(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), decoder_(tokenizer) {
  const auto id = [&](const char* name) { return tokenizer.special_id(name).value_or(-1); };
  start_ = id("<|start|>"), end_ = id("<|end|>"), message_token_ = id("<|message|>");
  channel_ = id("<|channel|>"), constrain_ = id("<|constrain|>");
  return_ = id("<|return|>"), call_ = id("<|call|>"), end_of_text_ = id("<|endoftext|>");
  open_header("assistant");
}

bool HarmonyParser::ends_turn(int32_t token) const {
  return token == return_ || token == call_ || token == end_of_text_;
}

bool HarmonyParser::is_stop(int32_t token) const { return token == end_ || ends_turn(token); }

bool HarmonyParser::is_reasoning(const Message& message) {
  return message.role == "assistant" && message.channel == "analysis" && message.recipient.empty();
}

std::vector<HarmonyEvent> HarmonyParser::push(int32_t token) {
  Events events;
  if (state_ == State::kDone || token < 0) return events;
  if (state_ == State::kHeader) {
    push_in_header(token, events);
  } else if (state_ == State::kContent) {
    push_in_content(token, events);
  } else {
    push_before_start(token, events);
  }
  return events;
}

std::vector<HarmonyEvent> HarmonyParser::finish() {
  Events events;
  if (state_ == State::kDone) return events;
  if (state_ == State::kContent) close_message(HarmonyEvent::Reason::kTruncated, events);
  end_turn(HarmonyEvent::Reason::kTruncated, events);
  return events;
}

void HarmonyParser::open_header(const std::string& role) {
  message_ = {};
  message_.role = role;
  for (std::string& text : header_) text.clear();
  part_ = Part::kRole;
  header_tokens_ = 0;
  state_ = State::kHeader;
}

void HarmonyParser::push_in_header(int32_t token, Events& events) {
  if (token == message_token_) return open_content();
  if (is_stop(token)) return stop(token, events);
  if (token == start_) {
    ++recoveries_;
    return open_header("");
  }
  if (++header_tokens_ > kMaxHeaderTokens) {
    recover_header(events);
    return push_in_content(token, events);
  }
  if (token == channel_) {
    recoveries_ += part_ != Part::kRole;
    part_ = Part::kChannel;
  } else if (token == constrain_) {
    part_ = Part::kConstrain;
  } else if (tokenizer_->is_special(token)) {
    ++recoveries_;
  } else {
    part_text(part_).append(tokenizer_->token_bytes(token));
  }
}

// to=NAME is the recipient wherever it stands. Of the other words the first one behind <|start|> is the role,
// the first one behind <|channel|> the channel, and the next one the content type.
void HarmonyParser::read_words(const std::string& text, Part part) {
  std::istringstream words(utf8_lossy(text));
  for (std::string word; words >> word;) {
    if (word.starts_with("to=")) {
      message_.recipient = word.substr(3);
    } else if (part == Part::kRole && message_.role.empty()) {
      message_.role = is_role(word) ? word : "tool";
      if (!is_role(word)) message_.name = word;
    } else if (part == Part::kChannel && message_.channel.empty()) {
      message_.channel = word;
    } else if (part == Part::kConstrain && message_.content_type.empty()) {
      message_.content_type = "<|constrain|>" + word;
    } else if (part != Part::kRole && message_.content_type.empty()) {
      message_.content_type = word;
    } else if (word != message_.role) {
      ++recoveries_;
    }
  }
}

void HarmonyParser::open_content() {
  for (const Part part : {Part::kRole, Part::kChannel, Part::kConstrain}) read_words(part_text(part), part);
  if (message_.role.empty()) message_.role = "assistant";
  normalize_recipient();
  state_ = State::kContent;
}

// "all" is nobody in particular, and only the assistant calls tools.
void HarmonyParser::normalize_recipient() {
  if (message_.role != "assistant" || message_.recipient == "all") message_.recipient.clear();
}

// From the front of a part of a header that has no <|message|>: what stands behind them may be text.
void HarmonyParser::take_header_words(Part part) {
  std::string& text = part_text(part);
  bool first = true;
  for (size_t begin = 0, end = end_of_word(text, begin); end > begin; end = end_of_word(text, begin)) {
    const std::string word = utf8_lossy(std::string_view(text).substr(begin, end - begin));
    if (word.starts_with("to=")) {
      message_.recipient = word.substr(3);
    } else if (first && part == Part::kRole && (message_.role.empty() || word == message_.role)) {
      message_.role = is_role(word) ? word : "tool";
      first = false;
    } else if (part == Part::kChannel && message_.channel.empty()) {
      message_.channel = word;
    } else if ((first && part == Part::kConstrain) || (part == Part::kChannel && is_content_type(word))) {
      first = false;
    } else {
      return;
    }
    text.erase(0, end);
  }
}

// No <|message|> came. Text can only stand behind all that belongs to a header.
void HarmonyParser::recover_header(Events& events) {
  ++recoveries_;
  for (const Part part : {Part::kRole, Part::kChannel, Part::kConstrain}) take_header_words(part);
  if (message_.role.empty()) message_.role = "assistant";
  if (message_.channel.empty()) message_.channel = "final";
  std::string text = part_text(part_);
  const size_t begin = text.find_first_not_of(kSpaces);
  const bool is_arguments = begin != std::string::npos && text[begin] == '{';
  if (begin == std::string::npos || (!message_.recipient.empty() && !is_arguments)) text.clear();
  if (!is_arguments) message_.recipient.clear();
  normalize_recipient();
  state_ = State::kContent;
  add_text(utf8_lossy(text), events);
}

void HarmonyParser::push_in_content(int32_t token, Events& events) {
  if (is_stop(token)) return stop(token, events);
  if (token == start_ || token == channel_) {  // the <|end|> before it is missing
    recoveries_ += token == start_;            // <|channel|> is counted where a message should begin
    close_message(HarmonyEvent::Reason::kNone, events);
    return push_before_start(token, events);
  }
  if (tokenizer_->is_special(token)) {
    ++recoveries_;
  } else {
    add_text(decoder_.push(token), events);
  }
}

void HarmonyParser::push_before_start(int32_t token, Events& events) {
  if (token == start_) return open_header("");
  if (ends_turn(token)) return stop(token, events);
  ++recoveries_;
  if (token == end_) return;
  open_header("assistant");
  push_in_header(token, events);
}

void HarmonyParser::add_text(std::string text, Events& events) {
  if (text.empty()) return;
  message_.text += text;
  HarmonyEvent event = {.kind = HarmonyEvent::Kind::kText};
  event.message = {.role = message_.role,
                   .name = message_.name,
                   .recipient = message_.recipient,
                   .channel = message_.channel,
                   .content_type = message_.content_type,
                   .text = std::move(text)};
  events.push_back(std::move(event));
}

void HarmonyParser::close_message(HarmonyEvent::Reason reason, Events& events) {
  using Kind = HarmonyEvent::Kind;
  const bool cut = reason == HarmonyEvent::Reason::kTruncated;
  std::string rest = decoder_.flush();
  if (!cut) add_text(std::move(rest), events);
  HarmonyEvent event = {.kind = cut || message_.recipient.empty() ? Kind::kMessageEnd : Kind::kToolCall};
  event.reason = reason;
  event.message = std::move(message_);
  events.push_back(std::move(event));
  message_ = {};
  state_ = State::kExpectStart;
}

void HarmonyParser::stop(int32_t token, Events& events) {
  using Reason = HarmonyEvent::Reason;
  if (state_ == State::kHeader) {
    recover_header(events);
    if (message_.text.empty()) state_ = State::kExpectStart;
  }
  recoveries_ += token == call_ && message_.recipient.empty();
  if (state_ == State::kContent) close_message(Reason::kNone, events);
  state_ = State::kExpectStart;
  if (token == end_) return;
  end_turn(token == return_ ? Reason::kReturn : token == call_ ? Reason::kCall : Reason::kEndOfText, events);
}

void HarmonyParser::end_turn(HarmonyEvent::Reason reason, Events& events) {
  HarmonyEvent event = {.kind = HarmonyEvent::Kind::kDone};
  event.reason = reason;
  events.push_back(std::move(event));
  state_ = State::kDone;
}

}  // namespace moesaic
