#include "child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "base/seconds.h"

namespace moesaic::app {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostOutput = size_t{256} << 10;
constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kKillPatience{10};  // a process with much memory takes some seconds to go

// A core file of a model in memory would fill the disk. The kernel's choice when memory runs out is the
// process with the highest score.
void bear_the_blame() {
  const rlimit none{};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::FILE* const score = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", score);
    std::fclose(score);
  }
}

[[noreturn]] void be_child(int output, const std::function<int()>& work) {
  bear_the_blame();
  std::signal(SIGINT, SIG_DFL);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  int status = 1;
  try {
    status = work();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "moesaic: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "moesaic: %s\n", e.what());
  }
  std::fflush(nullptr);
  _exit(status);
}

// Takes what the pipe has now. False: there will be no more.
bool take(int pipe, std::string& output) {
  char part[4096];
  for (;;) {
    const ssize_t n = ::read(pipe, part, sizeof part);
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
    output.append(part, static_cast<size_t>(n));
    if (output.size() > 2 * kMostOutput) output.erase(0, output.size() - kMostOutput);
  }
}

// The pipe's reading end and the process, until it is gone.
struct Child {
  pid_t pid;
  int pipe;
  bool open = true;  // the pipe's other end

  // Waits a tick. True: the process has ended.
  bool ended(ChildOutcome& outcome) {
    pollfd wait{.fd = pipe, .events = POLLIN, .revents = 0};
    if (open)
      poll(&wait, 1, static_cast<int>(kTick.count()));
    else
      std::this_thread::sleep_for(kTick / 4);
    open = take(pipe, outcome.output);
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) return false;
    take(pipe, outcome.output);
    outcome.end = WIFSIGNALED(status) ? ChildEnd::kSignal : ChildEnd::kExit;
    outcome.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    return true;
  }
};

// Kills the child and says why; stuck if it stays.
void end(Child& child, ChildEnd why, ChildOutcome& outcome) {
  kill(child.pid, SIGKILL);
  const auto start = Clock::now();
  bool gone = false;
  while (!gone && Clock::now() - start < kKillPatience) gone = child.ended(outcome);
  outcome.end = gone ? why : ChildEnd::kStuck;
}

ChildOutcome not_started(const char* what) {
  return {.code = 1, .output = fmt::format("moesaic: {}: {}\n", what, std::strerror(errno))};
}

}  // namespace

ChildOutcome run_child(double limit_seconds, const std::function<int()>& work,
                       const std::function<bool(double)>& goes_on) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return not_started("a pipe");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  std::fflush(nullptr);  // or both would write it
  const auto start = Clock::now();
  const pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]), close(ends[1]);
    return not_started("a process");
  }
  if (pid == 0) be_child(ends[1], work);
  close(ends[1]);
  Child child{.pid = pid, .pipe = ends[0]};
  ChildOutcome outcome;
  while (!child.ended(outcome)) {
    const double seconds = seconds_since(start);
    const bool wanted = goes_on(seconds);
    if (wanted && seconds < limit_seconds) continue;
    end(child, wanted ? ChildEnd::kTimeOut : ChildEnd::kInterrupted, outcome);
    break;
  }
  close(child.pipe);
  outcome.seconds = seconds_since(start);
  if (outcome.output.size() > kMostOutput) outcome.output.erase(0, outcome.output.size() - kMostOutput);
  return outcome;
}

std::string describe(const ChildOutcome& o) {
  switch (o.end) {
    case ChildEnd::kExit:
      return o.code == 0 ? fmt::format("ok, {:.1f} s", o.seconds)
                         : fmt::format("exit status {} after {:.1f} s", o.code, o.seconds);
    case ChildEnd::kSignal:
      return fmt::format("signal {} ({}) after {:.1f} s", o.code, strsignal(o.code), o.seconds);
    case ChildEnd::kTimeOut:
      return fmt::format("time-out, ended after {:.0f} s", o.seconds);
    case ChildEnd::kStuck:
      return fmt::format("time-out, and after {:.0f} s it cannot be ended: the driver holds it", o.seconds);
    case ChildEnd::kInterrupted:
      return fmt::format("interrupted after {:.1f} s", o.seconds);
  }
  return {};
}

}  // namespace moesaic::app
