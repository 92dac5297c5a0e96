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

Listener::Listener(bool raw, const Tokenizer& tokenizer, std::vector<std::string> stop_strings,
                   Printer printer)
    : raw_(raw), parser_(tokenizer), decoder_(tokenizer), stop_(std::move(stop_strings)), printer_(printer) {}

bool Listener::token(int32_t token, bool ends) {
  if (!raw_) {
    for (const HarmonyEvent& e : parser_.push(token)) handle(e);
  } else if (!ends) {
    show(stop_.push(decoder_.push(token)));
  }
  return !stop_.stopped();
}

Answer Listener::finish() {
  if (raw_) show(stop_.push(decoder_.flush()));
  if (!raw_) {
    for (const HarmonyEvent& e : parser_.finish()) handle(e);
  }
  show(stop_.flush());
  printer_.answer("\n");
  return std::move(answer_);
}

void Listener::show(const std::string& text) {
  answer_.text += text;
  printer_.answer(text);
}

void Listener::handle(const HarmonyEvent& e) {
  if (e.kind == HarmonyEvent::Kind::kText && e.message.channel == "final") show(stop_.push(e.message.text));
  if (e.kind == HarmonyEvent::Kind::kText && e.message.channel == "analysis") {
    answer_.reasoning += e.message.text;
    printer_.reasoning(e.message.text);
  }
  if (e.kind == HarmonyEvent::Kind::kToolCall)
    answer_.tool_calls.push_back({{"recipient", e.message.recipient}, {"arguments", e.message.text}});
  if (e.kind == HarmonyEvent::Kind::kMessageEnd || e.kind == HarmonyEvent::Kind::kToolCall)
    answer_.messages.push_back(e.message);
}

}  // namespace moesaic::app
