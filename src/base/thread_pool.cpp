#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

namespace moesaic {
namespace {

// About 50 microseconds: longer than the serial gaps of a decode step, short enough to leave an idle machine
// idle.
constexpr int kSpins = 20000;

// ThreadPool::state_: workers that have joined, then the bit that lets them, then the loop's number, which
// wraps: a worker that slept through exactly 65,536 loops misses one. kEnd: there will be no more loops.
constexpr uint32_t kJoined = 0x7FFF, kOpen = 0x8000, kLoop = 0x10000, kEnd = ~0u;

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until value differs from old: spins first, then sleeps.
template <typename T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int count = threads > 0 ? threads : usable_cores();
  for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  state_.store(kEnd);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t items, Call call, void* context) {
  if (items <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) call(context, i, 0);
    return;
  }
  call_ = call, context_ = context, items_ = items;
  next_.store(0, std::memory_order_relaxed);
  const uint32_t loop = (state_.load(std::memory_order_relaxed) & ~(kLoop - 1)) + kLoop;
  state_.store(loop | kOpen, std::memory_order_release);
  state_.notify_all();
  take_items(0);
  for (uint32_t now = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen; (now & kJoined) != 0;
       now = state_.load(std::memory_order_acquire)) {
    wait_while(state_, now);
  }
}

void ThreadPool::take_items(int thread) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < items_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    call_(context_, i, thread);
  }
}

void ThreadPool::work(int thread) {
  uint32_t done = 0;  // the loop that this worker has worked on last
  while (true) {
    // The end is a state, too: a flag of its own could be set between the looks at it and at the state, and
    // the worker would sleep for ever.
    uint32_t now = state_.load(std::memory_order_acquire);
    if (now == kEnd) return;
    const uint32_t loop = now & ~(kLoop - 1);
    if ((now & kOpen) == 0 || loop == done) {
      wait_while(state_, now);
      continue;
    }
    if (!state_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
    done = loop;
    take_items(thread);
    state_.fetch_sub(1, std::memory_order_release);
    state_.notify_all();
  }
}

}  // namespace moesaic
