// Computes expensive masks on another thread, while the engine's thread runs steps of other requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fair_queue.h"
#include "grammar/matcher.h"

namespace moesaic::grammar {

// The next mask of one answer. Its owner may use it while it is ready; before that it belongs to the thread.
struct NextMask {
  NextMask(Matcher m, std::string c) : matcher(std::move(m)), client(std::move(c)) {}

  // Both are true once the mask, or the reason why there is none, is here.
  bool compute_quickly();  // with the owner's thread
  bool compute_slice();

  Matcher matcher;
  const std::string client;
  std::span<const uint64_t> allowed;
  Status status;
  std::atomic<bool> ready = false, abandoned = false;

 private:
  bool compute(Effort effort);
};

// A thread that computes masks, at a low priority. It works in slices of some milliseconds: each client's
// masks take turns, and so do the clients, so that a costly mask delays the others by its slices alone. It is
// started by the first one.
class MaskThread {
 public:
  MaskThread() = default;
  // Returns within a slice, whatever waits.
  ~MaskThread();
  MaskThread(const MaskThread&) = delete;
  MaskThread& operator=(const MaskThread&) = delete;

  void compute(std::shared_ptr<NextMask> mask);
  void wait_until(const NextMask& mask, std::chrono::steady_clock::time_point deadline);
  // Gives up what may be the last reference to megabytes: if the thread runs, they are freed by it.
  void discard(std::shared_ptr<void> last);

 private:
  void run();
  // With mutex_ held, which is released meanwhile.
  void compute_next(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  FairQueue<std::shared_ptr<NextMask>> waiting_{std::numeric_limits<size_t>::max()};
  std::vector<std::shared_ptr<void>> discarded_;
  bool stopping_ = false;
  std::thread thread_;
};

// A matcher whose next mask is computed ahead: at once where that is quick, else by the thread. Of one
// answer, and used by one thread.
class AsyncMatcher {
 public:
  AsyncMatcher(Matcher matcher, std::string client, std::shared_ptr<MaskThread> thread);
  AsyncMatcher(AsyncMatcher&&) = default;
  AsyncMatcher& operator=(AsyncMatcher&&) = delete;
  ~AsyncMatcher();

  bool ready() const { return next_->ready.load(std::memory_order_acquire); }
  void wait_until(std::chrono::steady_clock::time_point deadline) const {
    thread_->wait_until(*next_, deadline);
  }
  // The same as Matcher's, valid until take(). Both only while it is ready.
  Result<std::span<const uint64_t>> allowed() const;
  void take(int32_t token);

 private:
  void begin();

  std::shared_ptr<MaskThread> thread_;
  std::shared_ptr<NextMask> next_;
};

}  // namespace moesaic::grammar
