#include "text/harmony_parser.h"

#include <algorithm>
#include <sstream>

#include "text/utf8.h"

namespace moesaic {
namespace {

bool is_role(const std::string& word) {
  return word == "assistant" || word == "user" || word == "system" || word == "developer" || word == "tool";
}

// Removes a leading to=NAME and returns NAME; empty where there is none.
std::string take_recipient(std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  if (text.compare(begin, 3, "to=") != 0) return "";
  const size_t end = std::min(text.find_first_of(" \t\r\n{[", begin), text.size());
  std::string name = utf8_lossy(text.substr(begin + 3, end - begin - 3));
  text.erase(0, end);
  return name;
}

}  // namespace

HarmonyParser::HarmonyParser(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), decoder_(tokenizer) {
  const auto id = [&](const char* name) { return tokenizer.special_id(name).value_or(-1); };
  start_ = id("<|start|>"), end_ = id("<|end|>"), message_token_ = id("<|message|>");
  channel_ = id("<|channel|>"), constrain_ = id("<|constrain|>");
  return_ = id("<|return|>"), call_ = id("<|call|>"), end_of_text_ = id("<|endoftext|>");
  open_header("assistant");
}

bool HarmonyParser::is_stop(int32_t token) const {
  return token == end_ || token == return_ || token == call_ || token == end_of_text_;
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
  if (state_ == State::kHeader && header_tokens_ > 0) header_as_content(events);
  if (state_ == State::kContent) close_message(events);
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
  if (is_stop(token)) {
    if (header_tokens_ > 0) header_as_content(events);
    return stop(token, events);
  }
  if (token == start_) {
    ++recoveries_;
    return open_header("");
  }
  if (++header_tokens_ > kMaxHeaderTokens) {
    header_as_content(events);
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
    part_text().append(tokenizer_->token_bytes(token));
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
  for (const Part part : {Part::kRole, Part::kChannel, Part::kConstrain})
    read_words(header_[static_cast<int>(part)], part);
  if (message_.role.empty()) message_.role = "assistant";
  state_ = State::kContent;
}

// No <|message|> came: a first word of the channel is the channel, to=NAME the recipient, all else was meant
// as text.
void HarmonyParser::header_as_content(Events& events) {
  ++recoveries_;
  std::string& behind = header_[1];
  const size_t end = std::min(behind.find_first_of(" \t\r\n{["), behind.size());
  message_.channel = end > 0 ? utf8_lossy(behind.substr(0, end)) : "final";
  behind.erase(0, end);
  for (const int part : {0, 1})
    if (std::string name = take_recipient(header_[part]); !name.empty()) message_.recipient = std::move(name);
  if (message_.role.empty()) message_.role = "assistant";
  state_ = State::kContent;
  add_text(utf8_lossy(header_[0] + behind + header_[2]), events);
}

void HarmonyParser::push_in_content(int32_t token, Events& events) {
  if (is_stop(token)) return stop(token, events);
  if (token == start_ || token == channel_) {  // the <|end|> before it is missing
    recoveries_ += token == start_;            // <|channel|> is counted where a message should begin
    close_message(events);
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
  if (token == return_ || token == call_ || token == end_of_text_) return stop(token, events);
  ++recoveries_;
  if (token == end_) return;
  open_header("assistant");
  if (token == channel_ || token == message_token_) return push_in_header(token, events);
  message_.channel = "final";
  state_ = State::kContent;
  push_in_content(token, events);
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

void HarmonyParser::close_message(Events& events) {
  add_text(decoder_.flush(), events);
  const bool is_call =
      message_.role == "assistant" && !message_.recipient.empty() && message_.recipient != "all";
  HarmonyEvent event = {.kind = is_call ? HarmonyEvent::Kind::kToolCall : HarmonyEvent::Kind::kMessageEnd};
  event.message = std::move(message_);
  events.push_back(std::move(event));
  message_ = {};
  state_ = State::kExpectStart;
}

void HarmonyParser::stop(int32_t token, Events& events) {
  using Reason = HarmonyEvent::Reason;
  recoveries_ += token == call_ && message_.recipient.empty();
  if (state_ == State::kHeader) ++recoveries_;  // a header without text
  if (state_ == State::kContent) close_message(events);
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
