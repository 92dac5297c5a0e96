// Computes expensive masks on other threads, while the engine's thread runs steps of other requests.
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

// The next mask of one answer. Its owner may use it while it is ready; before that it belongs to the threads.
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

// Threads that compute masks, at a low priority. They work in slices of some milliseconds: each client's
// masks take turns, and so do the clients, so that a costly mask delays the others by its slices alone. Masks
// of one grammar are computed one at a time. A thread is started when masks wait and none is idle. As long as
// the system gives none, compute() does all the work itself.
class MaskThreads {
 public:
  // most: threads; 0: one for every four CPUs, up to four.
  explicit MaskThreads(int most = 0);
  // Returns within a slice, whatever waits.
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  void compute(std::shared_ptr<NextMask> mask);
  void wait_until(const NextMask& mask, std::chrono::steady_clock::time_point deadline);
  // Gives up what may be the last reference to megabytes: if a thread runs, they are freed by it.
  void discard(std::shared_ptr<void> last);

 private:
  void start_thread();
  void run();
  // With mutex_ held, which is released meanwhile.
  void compute_next(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  FairQueue<std::shared_ptr<NextMask>> waiting_{std::numeric_limits<size_t>::max()};
  std::vector<std::shared_ptr<void>> discarded_;
  bool stopping_ = false;
  size_t most_, idle_ = 0;  // threads
  std::vector<std::thread> threads_;
};

// A matcher whose next mask is computed ahead: at once where that is quick, else by the threads. Of one
// answer, and used by one thread.
class AsyncMatcher {
 public:
  AsyncMatcher(Matcher matcher, std::string client, std::shared_ptr<MaskThreads> threads);
  AsyncMatcher(AsyncMatcher&&) = default;
  AsyncMatcher& operator=(AsyncMatcher&&) = delete;
  ~AsyncMatcher();

  bool ready() const { return next_->ready.load(std::memory_order_acquire); }
  void wait_until(std::chrono::steady_clock::time_point deadline) const {
    threads_->wait_until(*next_, deadline);
  }
  // The same as Matcher's, valid until take(). Both only while it is ready.
  Result<std::span<const uint64_t>> allowed() const;
  void take(int32_t token);

 private:
  void begin();

  std::shared_ptr<MaskThreads> threads_;
  std::shared_ptr<NextMask> next_;
};

}  // namespace moesaic::grammar
