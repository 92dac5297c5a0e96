// Computes expensive masks on another thread, while the engine's thread runs steps of other requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "grammar/matcher.h"

namespace moesaic::grammar {

// The next mask of one answer. Its owner may use it while it is ready; before that it belongs to the thread.
struct NextMask {
  explicit NextMask(Matcher m) : matcher(std::move(m)) {}

  // With the owner's thread: true if quick work was enough.
  bool try_compute();
  void compute();

  Matcher matcher;
  std::optional<int32_t> token;  // to be taken first
  std::vector<uint64_t> allowed;
  Status status;
  std::atomic<bool> ready = false, abandoned = false;

 private:
  bool compute(Effort effort);
};

// A thread that computes masks in the order in which they were asked for, at a low priority. It is started by
// the first one.
class MaskThread {
 public:
  MaskThread() = default;
  ~MaskThread();
  MaskThread(const MaskThread&) = delete;
  MaskThread& operator=(const MaskThread&) = delete;

  void compute(std::shared_ptr<NextMask> mask);
  void wait_until(const NextMask& mask, std::chrono::steady_clock::time_point deadline);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::shared_ptr<NextMask>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

// A matcher whose next mask is computed ahead: at once where that is quick, else by the thread. Of one
// answer, and used by one thread.
class AsyncMatcher {
 public:
  AsyncMatcher(Matcher matcher, std::shared_ptr<MaskThread> thread);
  AsyncMatcher(AsyncMatcher&&) = default;
  AsyncMatcher& operator=(AsyncMatcher&&) = delete;
  ~AsyncMatcher();

  bool ready() const { return next_->ready.load(std::memory_order_acquire); }
  void wait_until(std::chrono::steady_clock::time_point deadline) const {
    thread_->wait_until(*next_, deadline);
  }
  // As Matcher has them, valid until take(). Both only while it is ready.
  Result<std::span<const uint64_t>> allowed() const;
  void take(int32_t token);

 private:
  void begin();

  std::shared_ptr<MaskThread> thread_;
  std::shared_ptr<NextMask> next_;
};

}  // namespace moesaic::grammar
