#include "listener.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "chat/terminal.h"
#include "chat/terminal_text.h"

namespace moesaic::app {

namespace {

std::string_view from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// https://no-color.org; a terminal that is dumb, or does not say what it is, takes no styles either.
bool styles() {
  return from_environment("NO_COLOR").empty() && !from_environment("TERM").empty() &&
         from_environment("TERM") != "dumb";
}

// Text that standard error does not take is lost: fmt::print would end the answer by an exception.
void print_error(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

Printer::Printer(const PrinterOptions& options)
    : enabled_(options.enabled),
      reasoning_(options.show_reasoning || isatty(STDERR_FILENO) != 0),
      to_terminal_(isatty(STDOUT_FILENO) != 0),
      dim_(isatty(STDERR_FILENO) != 0 && styles()),
      thoughts_(chat::columns(STDERR_FILENO)) {
  chat::use_utf8();
  if (options.markdown && to_terminal_) markdown_.emplace(chat::columns(STDOUT_FILENO), styles());
}

std::string Printer::shown(const std::string& text) {
  if (markdown_) return markdown_->add(text);
  return to_terminal_ ? chat::printable(text) : text;
}

void Printer::answer(const std::string& text) {
  end_reasoning();
  if (enabled_) fmt::print("{}", shown(text)), std::fflush(stdout);
}

void Printer::finish() {
  end_reasoning();
  if (enabled_) fmt::print("{}\n", markdown_ ? markdown_->finish() : ""), std::fflush(stdout);
}

void Printer::reasoning(const std::string& text) {
  if (!enabled_ || !reasoning_ || text.empty()) return;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (!std::exchange(open_, true)) print_error(dim_ ? "\x1b[2m" : terminal ? "Thinking...\n" : "");
  if (!terminal) return print_error(text);
  thoughts_.text(chat::printable(text));
  print_error(thoughts_.take());
}

void Printer::end_reasoning() {
  if (!std::exchange(open_, false)) return;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  print_error(fmt::format("{}{}\n", thoughts_.finish(),
                          dim_       ? "\x1b[0m"
                          : terminal ? "\n...done thinking.\n"
                                     : ""));
}

void Listener::text(const TextPiece& piece) {
  if (!piece.recipient.empty()) return;
  const bool analysis = piece.channel == "analysis";
  const std::string text = (analysis ? reasoning_ : text_).add(piece);
  (analysis ? answer_.reasoning : answer_.text) += text;
  analysis ? printer_.reasoning(text) : printer_.answer(text);
}

AnswerText Listener::finish(const std::vector<Message>& messages) {
  printer_.finish();
  for (const Message& m : messages) {
    if (!m.recipient.empty())
      answer_.tool_calls.push_back({{"recipient", m.recipient}, {"arguments", m.text}});
  }
  return std::move(answer_);
}

}  // namespace moesaic::app
