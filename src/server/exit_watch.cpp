#include "server/exit_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <thread>

#include "server/request_log.h"

namespace moesaic::server {
namespace {

constexpr std::string_view kLine =
    "{\"event\":\"error\",\"detail\":\"the time to shut down is over and a thread still works: the process "
    "ends without it\"}\n";

}  // namespace

void ExitWatch::State::run() {
  std::unique_lock lock(mutex);
  while (!off && Clock::now() < time) changed.wait_until(lock, time);
  if (off) return;
  if (has_room(log.get())) {
    [[maybe_unused]] const ssize_t ignored = write(log.get(), kLine.data(), kLine.size());
  }
  std::_Exit(kStatus);
}

void ExitWatch::end_at(Clock::time_point time, int log) {
  if (state_ == nullptr) {
    state_ = std::make_shared<State>();
    state_->time = time;
    state_->log = Descriptor(fcntl(log, F_DUPFD_CLOEXEC, 3));
    std::thread([state = state_] { state->run(); }).detach();
    return;
  }
  const std::lock_guard lock(state_->mutex);
  state_->time = time;
  state_->changed.notify_all();
}

void ExitWatch::call_off() {
  if (state_ == nullptr) return;
  const std::lock_guard lock(state_->mutex);
  state_->off = true;
  state_->changed.notify_all();
}

}  // namespace moesaic::server
