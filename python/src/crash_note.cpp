#include "crash_note.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

namespace moesaic::python {
namespace {

struct Signal {
  int number;
  const char* name;
};
constexpr std::array kFatal = {Signal{SIGSEGV, "SIGSEGV\n"}, Signal{SIGBUS, "SIGBUS\n"},
                               Signal{SIGILL, "SIGILL\n"}, Signal{SIGFPE, "SIGFPE\n"},
                               Signal{SIGABRT, "SIGABRT\n"}};

// The handler uses only these, and calls that a signal handler may make.
using Words = std::array<char, 1001>;
Words note_path, note_text, note_line;
std::array<struct sigaction, kFatal.size()> before;
thread_local volatile std::sig_atomic_t depth = 0;

void keep(const std::string& from, Words& to) {
  const size_t bytes = std::min(from.size(), to.size() - 1);
  std::copy_n(from.begin(), bytes, to.begin());
  to[bytes] = 0;
}

void put(int file, const char* text) {
  if (write(file, text, std::strlen(text)) < 0) return;  // there is nobody to tell
}

void leave_note(const char* name) {
  const int file = open(note_path.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;
  put(file, note_text.data());
  put(file, name);
  close(file);
  put(STDERR_FILENO, note_line.data());
}

// A fault comes again when the handler returns, a signal that was sent comes from raise(): then to whoever
// handled it before.
void on_signal(int number) {
  for (size_t i = 0; i < kFatal.size(); ++i) {
    if (kFatal[i].number != number) continue;
    if (depth > 0) leave_note(kFatal[i].name);
    sigaction(number, &before[i], nullptr);
  }
  raise(number);
}

}  // namespace

void note_crashes(const std::string& path, const std::string& text, const std::string& line) {
  const bool first = note_path[0] == 0;
  keep(path, note_path), keep(text, note_text), keep(line, note_line);
  if (!first) return;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kFatal.size(); ++i) sigaction(kFatal[i].number, &action, &before[i]);
}

OwnCode::OwnCode() { depth = depth + 1; }
OwnCode::~OwnCode() { depth = depth - 1; }

}  // namespace moesaic::python
