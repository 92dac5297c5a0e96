#include "interrupt.h"

#include <unistd.h>

#include <array>
#include <utility>

namespace moesaic::app {
namespace {

volatile std::sig_atomic_t flag = 0;
struct sigaction before;

void on_interrupt(int) {
  flag = 1;
  sigaction(SIGINT, &before, nullptr);
}

// Shells add it to the number of the signal that ended a program.
constexpr int kSignalled = 128;

// Ctrl-C and Ctrl-\, kill, a closed terminal, and a limit on time (ulimit -t).
constexpr std::array kEnding = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGXCPU};
std::array<struct sigaction, kEnding.size()> ending_before;
std::vector<std::string> doomed;  // does not change while a handler may read it

// Every function called here may be called in a handler. The signal is not blocked (SA_NODEFER): raise() ends
// the process, unless it is PID 1.
void remove_and_end(int signal) {
  for (const std::string& path : doomed) unlink(path.c_str());
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  raise(signal);
  _exit(kSignalled + signal);
}

void end_as_init(int signal) { _exit(kSignalled + signal); }

}  // namespace

void obey_signals_as_init() {
  if (getpid() != 1) return;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, end_as_init);
}

InterruptScope::InterruptScope() {
  flag = 0;
  sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

InterruptScope::~InterruptScope() { sigaction(SIGINT, &before, nullptr); }

bool InterruptScope::requested() const { return flag != 0; }

RemoveOnSignal::RemoveOnSignal(std::vector<std::string> paths) {
  doomed = std::move(paths);
  for (size_t i = 0; i < kEnding.size(); ++i) {
    sigaction(kEnding[i], nullptr, &ending_before[i]);
    if (ending_before[i].sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = remove_and_end;
    action.sa_flags = SA_NODEFER;
    sigaction(kEnding[i], &action, nullptr);
  }
}

RemoveOnSignal::~RemoveOnSignal() {
  for (size_t i = 0; i < kEnding.size(); ++i) sigaction(kEnding[i], &ending_before[i], nullptr);
  doomed.clear();
}

}  // namespace moesaic::app
