#include "text/harmony_parser.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace moesaic {

HarmonyParser::HarmonyParser(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), decoder_(tokenizer) {
  const auto id = [&](const char* name) { return tokenizer.special_id(name).value_or(-1); };
  start_ = id("<|start|>"), end_ = id("<|end|>"), message_token_ = id("<|message|>");
  channel_ = id("<|channel|>"), constrain_ = id("<|constrain|>");
  return_ = id("<|return|>"), call_ = id("<|call|>"), end_of_text_ = id("<|endoftext|>");
  for (const std::string_view channel : kChannels) {
    std::string name;
    for (const int32_t token : tokenizer.encode(channel, false))
      names_.push_back(name += tokenizer.token_bytes(token));
  }
  open_header(false);
}

void HarmonyParser::continue_from(std::span<const int32_t> prompt) {
  const auto start = std::find(prompt.rbegin(), prompt.rend(), start_);
  if (start == prompt.rend()) return;
  const std::span<const int32_t> header = prompt.last(static_cast<size_t>(start - prompt.rbegin()));
  if (tokenizer_->decode(header) == "assistant") return;
  push(start_);
  for (const int32_t token : header) push(token);
  if (state_ == State::kDone) open_header(false);  // it was somebody else's message
  began_ = began_ || !held_.empty();
  message_.text.clear(), held_.clear();
  recoveries_ = 0;
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

std::vector<HarmonyEvent> HarmonyParser::flush() {
  Events events;
  if (state_ == State::kContent) add_text(decoder_.flush(), events);
  return events;
}

std::vector<HarmonyEvent> HarmonyParser::finish() {
  Events events;
  if (state_ == State::kDone) return events;
  if (state_ == State::kContent) close_message(HarmonyEvent::Reason::kTruncated, events);
  end_turn(HarmonyEvent::Reason::kTruncated, events);
  return events;
}

void HarmonyParser::open_header(bool after_start) {
  message_ = {};
  header_ = {HeaderPart()};
  after_start_ = after_start;
  header_tokens_ = 0;
  state_ = State::kHeader;
}

// complete: the role's part is.
bool HarmonyParser::is_foreign(bool complete) const {
  return after_start_ && header_.size() == 1 && is_foreign_role(header_[0].text, complete);
}

void HarmonyParser::push_in_header(int32_t token, Events& events) {
  const bool special = tokenizer_->is_special(token);
  if (!special) header_.back().text.append(tokenizer_->token_bytes(token));
  if (is_foreign(special)) return end_turn(HarmonyEvent::Reason::kForeign, events);
  if (token == message_token_) return open_content(events);
  if (is_stop(token)) return stop(token, events);
  if (token == start_) {  // the <|message|> before it is missing
    open_unfinished(false, "analysis", events);
    if (state_ == State::kContent) close_message(HarmonyEvent::Reason::kNone, events);
    return open_header(true);
  }
  if (++header_tokens_ > kMaxHeaderTokens && (special || may_be_cut())) {
    open_unfinished(false, "final", events);
    if (special) push_in_content(token, events);
  } else if (token == channel_) {
    begin_part(HeaderPart::Kind::kChannel, events);
  } else if (token == constrain_) {
    begin_part(HeaderPart::Kind::kConstrain, events);
  } else if (special) {
    ++recoveries_;
  }
}

// True if the part so far of a header that is too long ends with a whole character, as far as it is UTF-8.
bool HarmonyParser::may_be_cut() const {
  const std::string& text = header_.back().text;
  return utf8_whole(text) == text.size() || header_tokens_ > kMaxHeaderTokens + 3;
}

// Text before a <|channel|> is a message of its own, without a <|message|>: where it stood before any channel
// it is nobody's answer.
void HarmonyParser::begin_part(HeaderPart::Kind kind, Events& events) {
  const HarmonyHeader before = read_header(header_);
  if (before.foreign) return end_turn(HarmonyEvent::Reason::kForeign, events);
  if (kind == HeaderPart::Kind::kChannel && !before.text.empty()) {
    say_aside(before, events);
    const bool had_channel = header_.size() > 1;
    open_header(false);
    if (!had_channel && !before.recipient.empty()) header_[0].text = "to=" + before.recipient;
  }
  header_.push_back({.kind = kind});
}

// Words of a header that are text, as a message before that of the header.
void HarmonyParser::say_aside(const HarmonyHeader& header, Events& events) {
  const bool in_channel = header_.size() > 1 && header.recipient.empty();
  message_ = {.role = "assistant", .channel = in_channel ? header.channel : "analysis"};
  ++recoveries_;
  add_text(header.text, events);
  close_message(HarmonyEvent::Reason::kNone, events);
}

void HarmonyParser::open_message(const HarmonyHeader& header) {
  recoveries_ += header.regular ? 0 : 1;
  message_ = {.role = "assistant",
              .recipient = header.recipient,
              .channel = header.channel,
              .content_type = header.content_type,
              .recipient_last = header.recipient_last};
  began_ = false;
  state_ = State::kContent;
}

void HarmonyParser::open_content(Events& events) {
  const HarmonyHeader header = read_header(header_);
  if (header.foreign) return end_turn(HarmonyEvent::Reason::kForeign, events);
  if (!header.text.empty()) say_aside(header, events);
  open_message(header);
}

// No <|message|> came. Nothing where there is neither text nor a call.
void HarmonyParser::open_unfinished(bool ended_by_call, std::string_view unnamed, Events& events) {
  const HarmonyHeader header = read_unfinished_header(header_, ended_by_call, unnamed);
  if (header.text.empty() && header.recipient.empty() && header_tokens_ <= kMaxHeaderTokens) {
    ++recoveries_;
    state_ = State::kExpectStart;
    return;
  }
  open_message(header);
  add_text(header.text, events);
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
    const bool name = token == message_token_ && std::ranges::find(kChannels, held_) != kChannels.end();
    if (!name) add_text({}, events);
    held_.clear();
  } else {
    add_or_hold(decoder_.push(token), events);
  }
}

void HarmonyParser::add_or_hold(std::string text, Events& events) {
  const bool waits = !began_ && !text.empty() && std::ranges::find(names_, held_ + text) != names_.end();
  if (waits) {
    held_ += text;
  } else {
    add_text(std::move(text), events);
  }
}

void HarmonyParser::push_before_start(int32_t token, Events& events) {
  if (token == start_) return open_header(true);
  if (ends_turn(token)) return stop(token, events);
  ++recoveries_;
  if (token == end_) return;
  open_header(false);
  push_in_header(token, events);
}

// Text that waited goes before it.
void HarmonyParser::add_text(std::string text, Events& events) {
  text.insert(0, std::exchange(held_, {}));
  if (text.empty()) return;
  began_ = true;
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
  add_text(cut ? std::string() : std::move(rest), events);
  HarmonyEvent event = {.kind = cut || message_.recipient.empty() ? Kind::kMessageEnd : Kind::kToolCall};
  event.reason = reason;
  event.message = std::move(message_);
  events.push_back(std::move(event));
  message_ = {};
  state_ = State::kExpectStart;
}

void HarmonyParser::stop(int32_t token, Events& events) {
  using Reason = HarmonyEvent::Reason;
  if (state_ == State::kHeader) open_unfinished(token == call_, "final", events);
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
