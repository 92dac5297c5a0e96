#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/default_floats.h"
#include "base/error.h"
#include "base/pause_cpu.h"

namespace moesaic {
namespace {

constexpr int kPauses = 32;    // between looks at the clock
constexpr int kAheadOfL2 = 8;  // an eighth of a second cache is fetched ahead: the loop needs the rest

// ThreadPool::state_ is odd while workers may join. It wraps: a worker that slept through exactly 2^31 loops
// misses one. kEnd: there will be no more loops.
constexpr uint32_t kEnd = ~0u;
constexpr bool is_open(uint32_t state) { return state % 2 == 1 && state != kEnd; }

// Waits until value differs from old: spins first, then sleeps.
template <typename T>
void wait_while(const std::atomic<T>& value, T old, int64_t spin_ns) {
  using Clock = std::chrono::steady_clock;
  if (spin_ns > 0) {
    const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(spin_ns);
    do {
      for (int i = 0; i < kPauses; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_cpu();
      }
    } while (Clock::now() < end);
  }
  value.wait(old, std::memory_order_acquire);
}

ThreadPlan unpinned(int threads) {
  ThreadPlan plan = plan_threads(read_cpu_topology(), threads, false);
  plan.nodes = {{.threads = plan.threads}};
  return plan;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : ThreadPool(unpinned(threads)) {}

ThreadPool::ThreadPool(const ThreadPlan& plan, int64_t spin_ns)
    : spin_ns_(plan.threads > plan.cpus ? 0 : spin_ns),  // who spins would keep a CPU from who computes
      ahead_bytes_(spin_ns_ > 0 ? plan.l2_bytes / kAheadOfL2 : 0),
      pinned_(plan.pin),
      planned_(plan.threads),
      plan_(plan.nodes),
      threads_before_(plan.nodes.size()),
      ranges_(plan.threads),
      seats_(plan.threads) {
  int64_t before = 0;
  for (int node = 0; node < nodes(); ++node) {
    threads_before_[node] = before;
    before += plan_[node].threads;
    for (const int cpu : plan_[node].cpus) {
      node_of_cpu_.resize(std::max<size_t>(node_of_cpu_.size(), cpu + 1));
      node_of_cpu_[cpu] = node;
    }
  }
  MOESAIC_CHECK(before == plan.threads);
  workers_.reserve(plan.threads);
  try {
    for (int i = 1; i < plan.threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::exception&) {  // a limit on processes or memory: those that there are do the work
  }
}

ThreadPool::~ThreadPool() {
  state_.store(kEnd);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// ends: where the range of all threads ends, or where each thread's does.
void ThreadPool::run(std::span<const int64_t> ends, Call call, void* context) {
  const DefaultFloats floats;
  const int64_t items = ends.back();
  if (items <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) call(context, i, 0);
    return;
  }
  call_ = call, context_ = context, homes_ = static_cast<int>(ends.size());
  int64_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    ranges_[i].next.store(begin, std::memory_order_relaxed);
    begin = ranges_[i].end = ends[i];
  }
  uint32_t open = state_.load(std::memory_order_relaxed) + 1;
  if (open == kEnd) open = 1;
  state_.store(open, std::memory_order_release);
  state_.notify_all();
  take_items(0);
  state_.store(open + 1);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (seats_[i].loop.load() == open) wait_while(seats_[i].loop, open, spin_ns_);
  }
}

// The node that the calling thread is on. The caller, and everybody where nobody is pinned, may have been
// moved since the last loop.
int ThreadPool::node_of(int thread) const {
  if (nodes() == 1) return 0;
  if (pinned_ && thread > 0) {
    int node = 0;
    while (node + 1 < nodes() && thread >= threads_before_[node + 1]) ++node;
    return node;
  }
  const int cpu = sched_getcpu();
  return cpu >= 0 && cpu < std::ssize(node_of_cpu_) ? node_of_cpu_[cpu] : 0;
}

// A thread begins with its own range, or one of the node that it has been moved to. Then it looks at those of
// its node, then at the others.
void ThreadPool::take_items(int thread) {
  int64_t first = 0, count = 1, home = 0;
  if (homes_ > 1) {
    const int node = node_of(thread);
    first = threads_before_[node], count = plan_[node].threads;
    home = thread >= first && thread < first + count ? thread - first : thread % count;
  }
  for (int64_t n = 0; n < homes_; ++n) {
    Range& range = ranges_[n < count ? first + (home + n) % count : (first + n) % homes_];
    if (n > 0 && range.next.load(std::memory_order_relaxed) >= range.end) continue;
    for (int64_t i = range.next.fetch_add(1, std::memory_order_relaxed); i < range.end;
         i = range.next.fetch_add(1, std::memory_order_relaxed)) {
      call_(context_, i, thread);
    }
  }
}

void ThreadPool::expect(std::span<const std::byte* const> parts, int64_t bytes) {
  MOESAIC_CHECK(parts.size() <= kMostParts);
  for (size_t i = 0; i < parts.size(); ++i) parts_[i].store(parts[i], std::memory_order_relaxed);
  part_bytes_.store(bytes, std::memory_order_relaxed);
  part_count_.store(std::ssize(parts), std::memory_order_release);
}

// Stops when a loop opens after the one that this worker has done.
void ThreadPool::fetch_ahead(int thread, uint32_t done) const {
  constexpr int64_t kLine = 64, kLines = 8;  // between looks at the state
  const int64_t parts = part_count_.load(std::memory_order_acquire),
                bytes = part_bytes_.load(std::memory_order_relaxed), all = parts * bytes;
  int64_t at = all * thread / planned_;
  const int64_t end = std::min(all * (thread + 1) / planned_, at + ahead_bytes_);
  while (at < end) {
    const uint32_t now = state_.load(std::memory_order_acquire);
    if (now == kEnd || (is_open(now) && now != done)) return;
    const std::byte* const part = parts_[at / bytes % kMostParts].load(std::memory_order_relaxed);
    for (int i = 0; i < kLines; ++i, at += kLine) __builtin_prefetch(part + at % bytes, 0, 2);
  }
}

void ThreadPool::work(int thread) {
  const DefaultFloats floats;
  // The thread may use all CPUs of its node. The kernel balances threads among them.
  if (pinned_) run_on(plan_[node_of(thread)].cpus);
  std::atomic<uint32_t>& seat = seats_[thread - 1].loop;
  uint32_t done = 0;  // the loop that this worker has worked on last
  while (true) {
    // The end is a state, too: a flag of its own could be set between the looks at it and at the state, and
    // the worker would sleep for ever.
    const uint32_t now = state_.load(std::memory_order_acquire);
    if (now == kEnd) return;
    if (!is_open(now) || now == done) {
      wait_while(state_, now, spin_ns_);
      continue;
    }
    seat.store(now);
    if (state_.load() == now) take_items(thread);
    done = now;
    seat.store(now + 1, std::memory_order_release);
    seat.notify_all();
    fetch_ahead(thread, now);
  }
}

}  // namespace moesaic
