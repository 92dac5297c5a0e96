#include "chat/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "chat/terminal_text.h"
#include "chat/word_wrap.h"

namespace moesaic::chat {
namespace {

constexpr std::string_view kPasteMarks = "\x1b[?2004h", kNoPasteMarks = "\x1b[?2004l", kNoStyle = "\x1b[0m";
constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

termios original;
volatile std::sig_atomic_t size_changed = 0, passed_over = 0;

// Only what a signal handler may do.
void send(std::string_view text) {
  [[maybe_unused]] const auto n = write(STDERR_FILENO, text.data(), text.size());
}

void give_back() {
  send(kNoStyle);
  send(kNoPasteMarks);
  tcsetattr(STDIN_FILENO, TCSANOW, &original);
}

void on_end(int signal) {
  give_back();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void on_interrupt(int signal) {
  if (passed_over != 0) on_end(signal);
  passed_over = 1;
}

void on_stop(int) {
  termios now;
  tcgetattr(STDIN_FILENO, &now);
  give_back();
  raise(SIGSTOP);
  tcsetattr(STDIN_FILENO, TCSANOW, &now);
  send(kPasteMarks);
}

void on_resize(int) { size_changed = 1; }

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

void handle_all(void (*end)(int), void (*stop)(int), void (*resize)(int)) {
  for (const int signal : kEnding) handle(signal, end);
  handle(SIGTSTP, stop);
  handle(SIGWINCH, resize);
}

}  // namespace

Terminal::Terminal() {
  tcgetattr(STDIN_FILENO, &original);
  handle_all(on_end, on_stop, on_resize);
  send(kPasteMarks);
}

Terminal::~Terminal() {
  give_back();
  handle_all(SIG_DFL, SIG_DFL, SIG_DFL);
}

void Terminal::set_editing(bool editing) {
  passed_over = 0;
  handle(SIGINT, editing ? on_end : on_interrupt);
}

int columns(int file) {
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void notice(std::string_view text) {
  std::string out = printable(text);
  if (isatty(STDERR_FILENO) != 0) {
    use_utf8();
    WordWrap lines(columns(STDERR_FILENO));
    lines.text(out);
    out = lines.finish();
  }
  std::fprintf(stderr, "%s\n", out.c_str());
}

bool resized() {
  const bool changed = size_changed != 0;
  size_changed = 0;
  return changed;
}

}  // namespace moesaic::chat
