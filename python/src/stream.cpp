#include "stream.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace moesaic::python {

Stream::Stream(bool only_ends) : only_ends_(only_ends) {}

Stream::~Stream() {
  if (fd_ >= 0) close(fd_);
}

Result<int> Stream::fd() {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0) fd_ = eventfd(ready_.empty() ? 0 : 1, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd_ < 0) return error(StatusCode::kIo, "the event loop gets no descriptor: {}", std::strerror(errno));
  return fd_;
}

Callbacks Stream::add(const std::shared_ptr<Stream>& self, int index) {
  {
    const std::lock_guard lock(self->mutex_);
    self->live_[index].delta.index = index;
  }
  return {.on_token =
              [self, index](const SampledToken& token) {
                self->change(index, false, [&](Delta& delta) {
                  delta.tokens.push_back(token);
                  delta.latest_token = std::chrono::steady_clock::now();
                  if (delta.first_token == decltype(delta.first_token){})
                    delta.first_token = delta.latest_token;
                });
              },
          .on_text =
              [self, index](const TextPiece& piece) {
                self->change(index, false, [&](Delta& delta) { delta.pieces.push_back(piece); });
              },
          .on_end =
              [self, index](const Outcome& outcome) {
                self->change(index, true, [&](Delta& delta) { delta.end = outcome; });
              },
          .on_prompt_token =
              [self, index](const SampledToken& token) {
                self->change(index, false, [&](Delta& delta) { delta.prompt_tokens.push_back(token); });
              },
          .on_begin =
              [self, index] {
                const std::lock_guard lock(self->mutex_);
                if (const auto found = self->live_.find(index); found != self->live_.end())
                  found->second.delta.begun = std::chrono::steady_clock::now();
              }};
}

// Nothing for a request that fail() has ended.
void Stream::change(int index, bool ends, const auto& change) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(index);
  if (found == live_.end() || found->second.delta.end) return;
  change(found->second.delta);
  if (ends || !only_ends_) make_ready(index, found->second);
}

// Under the mutex.
void Stream::make_ready(int index, Live& live) {
  if (std::exchange(live.ready, true)) return;
  ready_.push_back(index);
  if (ready_.size() > 1) return;
  changed_.notify_all();
  if (fd_ < 0) return;
  const uint64_t one = 1;
  // It fails only where the count is at its maximum, and the descriptor then is readable.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

std::stop_token Stream::stop_token(int index) const {
  const std::lock_guard lock(mutex_);
  return live_.at(index).stop.get_token();
}

void Stream::forget(int index) {
  const std::lock_guard lock(mutex_);
  live_.erase(index);
  std::erase(ready_, index);  // fail() may have put it there
}

int Stream::open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(live_.size());
}

bool Stream::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return !ready_.empty(); });
}

std::vector<Delta> Stream::take() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = fd_ < 0 ? 0 : ::read(fd_, &count, sizeof count);
  std::vector<Delta> deltas;
  for (const int index : std::exchange(ready_, {})) {
    Live& live = live_.at(index);
    live.ready = false;
    Delta next{.index = index};
    next.begun = live.delta.begun, next.first_token = live.delta.first_token;
    next.latest_token = live.delta.latest_token;
    deltas.push_back(std::exchange(live.delta, std::move(next)));
    if (deltas.back().end) live_.erase(index);
  }
  return deltas;
}

// A stop callback may run here, so not under the mutex.
void Stream::cancel(int index) {
  std::optional<std::stop_source> stop;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = live_.find(index); found != live_.end()) stop = found->second.stop;
  }
  if (stop) stop->request_stop();
}

void Stream::cancel_all() {
  std::vector<std::stop_source> stops;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [index, live] : live_) stops.push_back(live.stop);
  }
  for (std::stop_source& stop : stops) stop.request_stop();
}

void Stream::fail(const Status& status) {
  const std::lock_guard lock(mutex_);
  for (auto& [index, live] : live_) {
    if (live.delta.end) continue;
    live.delta.end = Outcome{.finish = FinishReason::kError, .error = status};
    make_ready(index, live);
  }
}

}  // namespace moesaic::python
