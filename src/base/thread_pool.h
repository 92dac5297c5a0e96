// A fixed pool of threads for loops that last microseconds: workers spin briefly between loops, then sleep.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "base/cpu_topology.h"

namespace moesaic {

class ThreadPool {
 public:
  // Longer than the serial gaps of a decode step, short enough to leave an idle machine idle. A time and not
  // a count: x86's pause takes 40 to 140 cycles, Arm's yield one.
  static constexpr int64_t kSpinNs = 50'000;
  // threads counts the caller, who works too; 0: as plan_threads() has it. Nobody is pinned. Where the system
  // refuses threads the pool has fewer.
  explicit ThreadPool(int threads);
  // Workers are pinned as planned, the caller never is: other code runs on its thread. spin_ns: how long they
  // wait awake for the next loop, if each has a CPU.
  explicit ThreadPool(const ThreadPlan& plan, int64_t spin_ns = kSpinNs);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, thread) for every item in [0, items), items handed out one by one; returns when all are
  // done. One loop at a time; the body must not call for_each again and must not throw.
  template <typename Body>
  void for_each(int64_t items, Body&& body) {
    run({&items, 1}, call_of(body), context_of(body));
  }

  // The memory that a later loop reads: parts of `bytes` each, in the order of the loop's items. Workers that
  // wait for a loop fetch the beginning of their shares into their second caches, so that the memory does not
  // rest between loops. This holds until the next call. The memory may be freed: nothing is read from it.
  static constexpr size_t kMostParts = 8;
  void expect(std::span<const std::byte* const> parts, int64_t bytes);

  // NUMA nodes with threads, 1 if there is nothing to choose between. Of `items` that lie in memory one after
  // the other, those from node_begin(items, node) on are node's; node_begin(items, nodes()) is items.
  int nodes() const { return static_cast<int>(threads_before_.size()); }
  int64_t node_begin(int64_t items, int node) const {
    return node == nodes() ? items : items * threads_before_[node] / planned_;
  }

  // The same as for_each, with a range of items for each node: the items of node n end at ends[n], where the
  // next node's begin. Each thread begins with items of its own that follow each other, of the node that it
  // runs on, for bodies whose neighbours use the same memory; then it takes what is left of that node's, and
  // of the others' when those are all taken.
  template <typename Body>
  void for_each_by_node(std::span<const int64_t> ends, Body&& body) {
    std::vector<int64_t> parts;
    int64_t begin = 0;
    for (int node = 0; node < nodes(); ++node) {
      const int64_t count = ends[node] - begin, threads = plan_[node].threads;
      for (int64_t thread = 1; thread <= threads; ++thread) parts.push_back(begin + count * thread / threads);
      begin = ends[node];
    }
    run(parts, call_of(body), context_of(body));
  }
  // The same with the ranges of node_begin().
  template <typename Body>
  void for_each_by_node(int64_t items, Body&& body) {
    std::vector<int64_t> ends;
    for (int node = 0; node < nodes(); ++node) ends.push_back(node_begin(items, node + 1));
    for_each_by_node(ends, body);
  }

 private:
  using Call = void (*)(void* context, int64_t item, int thread);
  // Two lines of 64 bytes: Intel's prefetcher fetches lines in pairs.
  static constexpr size_t kApart = 128;

  // The items that are left of those that one thread begins with, or of all. They have a cache line of their
  // own: who takes one writes to it.
  struct alignas(kApart) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  // A worker's own line: the loop that it works on, or what is no open loop. A word that all workers wrote to
  // would go from core to core for each of them, twice a loop.
  struct alignas(kApart) Seat {
    std::atomic<uint32_t> loop{0};
  };

  template <typename Body>
  static Call call_of(Body&) {
    return [](void* context, int64_t item, int thread) { (*static_cast<Body*>(context))(item, thread); };
  }
  template <typename Body>
  static void* context_of(Body& body) {
    return const_cast<void*>(static_cast<const void*>(&body));
  }

  void run(std::span<const int64_t> ends, Call call, void* context);
  void take_items(int thread);
  int node_of(int thread) const;
  void fetch_ahead(int thread, uint32_t done) const;
  void work(int thread);

  Call call_ = nullptr;
  void* context_ = nullptr;
  int64_t spin_ns_ = 0;      // how long a thread waits before it sleeps
  int64_t ahead_bytes_ = 0;  // most that a worker fetches ahead
  bool pinned_ = false;
  int64_t planned_ = 1;  // threads; fewer where the system refused some
  std::vector<ThreadPlan::Node> plan_;
  std::vector<int> node_of_cpu_;         // by number of the CPU; what is beyond it is on node 0
  std::vector<int64_t> threads_before_;  // by node: threads of the nodes before it
  std::vector<Range> ranges_;            // by thread; where all take the same items the first one alone
  int homes_ = 1;                        // ranges of this loop
  std::vector<Seat> seats_;              // by worker
  // Twice the loop's number; one more while workers may join it; or the end. A worker takes its seat and then
  // looks again; the caller closes the loop and then looks at the seats. So it waits only for workers that
  // joined: one that does not get its core in time delays nothing.
  alignas(kApart) std::atomic<uint32_t> state_{0};
  // The parts that expect() named. A worker that reads them while the caller writes fetches what nobody
  // needs.
  alignas(kApart) std::array<std::atomic<const std::byte*>, kMostParts> parts_{};
  std::atomic<int64_t> part_count_{0}, part_bytes_{0};
  alignas(kApart) std::vector<std::thread> workers_;
};

}  // namespace moesaic
