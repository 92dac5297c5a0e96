#include "listener.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace moesaic::app {

Printer::Printer(bool enabled, bool show_reasoning)
    : enabled_(enabled), terminal_(isatty(STDERR_FILENO) != 0), reasoning_(show_reasoning || terminal_) {}

void Printer::answer(const std::string& text) {
  end_reasoning();
  if (enabled_) fmt::print("{}", text), std::fflush(stdout);
}

void Printer::reasoning(const std::string& text) {
  if (!enabled_ || !reasoning_ || text.empty()) return;
  const bool dim = !std::exchange(open_, true) && terminal_;
  fmt::print(stderr, "{}{}", dim ? "\x1b[2m" : "", text);
}

void Printer::end_reasoning() {
  if (std::exchange(open_, false)) fmt::print(stderr, "{}\n", terminal_ ? "\x1b[0m" : "");
}

void Listener::text(const TextPiece& piece) {
  if (!piece.recipient.empty() || piece.channel == "commentary") return;
  const bool analysis = piece.channel == "analysis";
  (analysis ? answer_.reasoning : answer_.text) += piece.text;
  analysis ? printer_.reasoning(piece.text) : printer_.answer(piece.text);
}

AnswerText Listener::finish(const std::vector<Message>& messages) {
  printer_.answer("\n");
  for (const Message& m : messages) {
    if (!m.recipient.empty())
      answer_.tool_calls.push_back({{"recipient", m.recipient}, {"arguments", m.text}});
  }
  return std::move(answer_);
}

}  // namespace moesaic::app
