#include "api/answer_stream.h"

#include <utility>

namespace moesaic {

AnswerStream::AnswerStream(const Tokenizer& tokenizer, bool chat, std::vector<std::string> stop_strings)
    : chat_(chat), parser_(tokenizer), decoder_(tokenizer), stop_(std::move(stop_strings)) {}

void AnswerStream::add_answer(const std::string& text, std::vector<TextPiece>& pieces) {
  std::string safe = stop_.push(text);
  if (!safe.empty())
    add_piece({.channel = answer_channel_, .recipient = {}, .text = std::move(safe)}, pieces);
}

void AnswerStream::add_piece(TextPiece piece, std::vector<TextPiece>& pieces) {
  piece.begins = chat_ && std::exchange(begins_, false);
  pieces.push_back(std::move(piece));
}

void AnswerStream::add(const HarmonyEvent& e, std::vector<TextPiece>& pieces) {
  const Message& m = e.message;
  if (e.kind == HarmonyEvent::Kind::kToolCall && m.text.empty())
    add_piece({.channel = m.channel, .recipient = m.recipient, .text = {}}, pieces);
  if (e.kind == HarmonyEvent::Kind::kMessageEnd || e.kind == HarmonyEvent::Kind::kToolCall) {
    messages_.push_back(m);
    begins_ = true;
  }
  if (e.kind != HarmonyEvent::Kind::kText || m.text.empty()) return;
  if (m.recipient.empty() && m.channel != "analysis" && m.channel != "commentary") {
    answer_channel_ = m.channel;
    return add_answer(m.text, pieces);
  }
  add_piece({.channel = m.channel, .recipient = m.recipient, .text = m.text}, pieces);
}

std::vector<TextPiece> AnswerStream::push(int32_t token, bool ends) {
  std::vector<TextPiece> pieces;
  if (chat_) {
    for (const HarmonyEvent& e : parser_.push(token)) add(e, pieces);
  } else if (!ends) {
    add_answer(decoder_.push(token), pieces);
  }
  return pieces;
}

std::vector<TextPiece> AnswerStream::finish() {
  std::vector<TextPiece> pieces;
  if (chat_) {
    for (const HarmonyEvent& e : parser_.finish()) add(e, pieces);
  } else {
    add_answer(decoder_.flush(), pieces);
  }
  std::string held = stop_.flush();
  if (!held.empty()) pieces.push_back({.channel = answer_channel_, .recipient = {}, .text = std::move(held)});
  return pieces;
}

}  // namespace moesaic
