#include "listener.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

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

bool Listener::token(int32_t token, bool ends) {
  show(stream_.push(token, ends));
  return !stream_.stopped();
}

Answer Listener::finish() {
  stream_.finish();
  printer_.answer("\n");
  answer_.messages = stream_.messages();
  for (const Message& m : answer_.messages) {
    if (!m.recipient.empty())
      answer_.tool_calls.push_back({{"recipient", m.recipient}, {"arguments", m.text}});
  }
  return std::move(answer_);
}

void Listener::show(const std::vector<TextPiece>& pieces) {
  for (const TextPiece& p : pieces) {
    const bool analysis = p.channel == "analysis";
    if (!p.recipient.empty() || p.channel == "commentary") continue;
    (analysis ? answer_.reasoning : answer_.text) += p.text;
    analysis ? printer_.reasoning(p.text) : printer_.answer(p.text);
  }
}

}  // namespace moesaic::app
