#include "api/answer_stream.h"

#include <utility>

#include "text/utf8.h"

namespace moesaic {
namespace {

// Stop strings count in its text.
bool is_answer(const Message& message) { return message.recipient.empty() && message.channel != "analysis"; }

}  // namespace

AnswerStream::AnswerStream(const Tokenizer& tokenizer, bool chat, std::vector<std::string> stop_strings,
                           const StopRules& rules)
    : tokenizer_(&tokenizer),
      chat_(chat),
      rules_(rules),
      parser_(tokenizer),
      decoder_(tokenizer),
      stop_(std::move(stop_strings), rules.include_stop) {}

// The first text that counts may begin with what waited for its tokens and does not.
std::string AnswerStream::filtered(const std::string& text) {
  if (pushed_ <= rules_.min_tokens) return text;
  if (std::exchange(text_counts_, text_counts_ || !text.empty()) || text.size() <= counted_)
    return stop_.push(text);
  const size_t waited = utf8_valid_prefix(std::string_view(text).substr(0, text.size() - counted_));
  return text.substr(0, waited) + stop_.push(std::string_view(text).substr(waited));
}

void AnswerStream::add_piece(TextPiece piece, Pieces& pieces) {
  piece.begins = chat_ && std::exchange(begins_, false);
  pieces.push_back(std::move(piece));
}

void AnswerStream::add_answer(std::string text, Pieces& pieces) {
  if (text.empty()) return;
  if (chat_) answer_ += text;
  add_piece({.channel = answer_channel_, .recipient = {}, .text = std::move(text)}, pieces);
}

void AnswerStream::add_text(const Message& delta, Pieces& pieces) {
  if (is_answer(delta)) {
    answer_channel_ = delta.channel;
    add_answer(filtered(delta.text), pieces);
  } else if (!delta.recipient.empty()) {
    held_ += delta.text;
  } else {
    add_piece({.channel = delta.channel, .recipient = {}, .text = delta.text}, pieces);
  }
}

void AnswerStream::add_call(const Message& call, Pieces& pieces) {
  const bool usual = call.channel == "commentary" && call.content_type == "<|constrain|>json";
  add_piece({.channel = call.channel,
             .recipient = call.recipient,
             .text = std::exchange(held_, {}),
             .recipient_last = usual && call.recipient_last},
            pieces);
}

void AnswerStream::add(const HarmonyEvent& e, Pieces& pieces) {
  using Kind = HarmonyEvent::Kind;
  if (over_) return;
  if (e.reason == HarmonyEvent::Reason::kForeign) over_ = true;
  if (e.kind == Kind::kDone) return;
  if (e.kind == Kind::kText) return add_text(e.message, pieces);
  const bool cut = e.reason == HarmonyEvent::Reason::kTruncated;
  if (e.kind == Kind::kToolCall) add_call(e.message, pieces);
  if (!cut) add_answer(stop_.flush(), pieces);
  begins_ = true;
  if (cut && !e.message.recipient.empty()) return;
  messages_.push_back(e.message);
  if (is_answer(e.message)) messages_.back().text = std::exchange(answer_, {});
  over_ = !cut && rules_.ends_after && rules_.ends_after(messages_.back());
}

void AnswerStream::add_all(const std::vector<HarmonyEvent>& events, Pieces& pieces) {
  for (const HarmonyEvent& e : events) add(e, pieces);
}

// A token that ends the answer is text only where the rules say so; a special one never is.
bool AnswerStream::is_text(int32_t token, bool ends) const {
  const bool special = tokenizer_->is_special(token);
  if (ends) return rules_.include_stop && !special;
  return chat_ || !special || !rules_.skip_special;
}

std::vector<TextPiece> AnswerStream::push(int32_t token, bool ends) {
  Pieces pieces;
  const bool text = is_text(token, ends);
  if (++pushed_ > rules_.min_tokens && text && !(chat_ && tokenizer_->is_special(token)))
    counted_ += tokenizer_->token_bytes(token).size();
  if (chat_) {
    if (text || parser_.ends_turn(token)) add_all(parser_.push(token), pieces);
    if (ends) add_all(parser_.flush(), pieces);
  } else {
    if (text) add_answer(filtered(decoder_.push(token)), pieces);
    if (ends) add_answer(filtered(decoder_.flush()), pieces);
  }
  if (ends) add_answer(stop_.flush(), pieces);
  return pieces;
}

std::vector<TextPiece> AnswerStream::finish() {
  Pieces pieces;
  if (chat_) add_all(parser_.finish(), pieces);
  return pieces;
}

}  // namespace moesaic
