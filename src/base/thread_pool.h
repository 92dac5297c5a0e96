// A fixed pool of threads for loops that last microseconds: workers spin briefly between loops, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace moesaic {

class ThreadPool {
 public:
  // threads counts the caller, who works too; 0: one per core that this process may use.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, thread) for every item in [0, items), items handed out one by one; returns when all are
  // done. One loop at a time; the body must not call for_each again and must not throw.
  template <typename Body>
  void for_each(int64_t items, Body&& body) {
    run(
        items, [](void* context, int64_t item, int thread) { (*static_cast<Body*>(context))(item, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int64_t item, int thread);

  void run(int64_t items, Call call, void* context);
  void take_items(int thread);
  void work(int thread);

  Call call_ = nullptr;
  void* context_ = nullptr;
  int64_t items_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  // The loop's number, whether workers may still join it, and how many have; or the end. The caller waits
  // only for those that have: a worker that another program keeps from its core costs the loop its help and
  // nothing more.
  alignas(64) std::atomic<uint32_t> state_{0};
  std::vector<std::thread> workers_;
};

}  // namespace moesaic
