// A thread block on the host: a fiber a thread, which runs until it waits for another. Kernels compiled
// against it (see intrinsics.h) show on any machine whether layouts, indices and barriers agree. What a
// thread hands over (16-byte copies, wgmma) is done as late as its waits allow, bulk copies land at once;
// races between warps are not looked for.
#pragma once

#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moesaic::cuda::on_host {

// Where a given number of threads meet, again and again.
struct Meeting {
  int64_t phase = 0;
  int arrived = 0;
};
// An mbarrier.
struct Mbarrier {
  int64_t phase = 0;
  int count = 0, pending = 0;
  int64_t bytes = 0;  // bytes still to come
  void arrive() { --pending, turn(); }
  void expect(int64_t n) { bytes += n, arrive(); }
  void land(int64_t n) { bytes -= n, turn(); }

 private:
  void turn() {
    if (pending == 0 && bytes == 0) ++phase, pending = count;
  }
};

// Values that a thread has handed over, in groups.
template <class T>
struct Later {
  std::vector<T> open;
  std::deque<std::vector<T>> groups;
  void commit() { groups.push_back(std::exchange(open, {})); }
  // Until at most `pending` groups are left.
  template <class Do>
  void wait(size_t pending, const Do& run) {
    while (groups.size() > pending) {
      run(groups.front());
      groups.pop_front();
    }
  }
};
struct Copy {
  void* to;
  const void* from;
};

class ThreadBlock {
 public:
  // shared: the kernel's `extern __shared__` array.
  ThreadBlock(int threads, uint8_t* shared);

  // cluster: the first of `size` neighbours, this one among them, which run at once; memory: where the shared
  // memory of this one is while another block runs.
  void join_cluster(ThreadBlock* cluster, int size, uint8_t* memory) {
    cluster_ = cluster, cluster_size_ = size, memory_ = memory;
  }
  // kernel: what each thread does, from the next advance() on; it must outlive the block's run.
  void begin(uint3 index, dim3 grid, const std::function<void()>& kernel);
  // Each thread until it waits for another, as often as there is one that can go on; false if none could. The
  // order differs from block to block, since what is right in one order only lacks a barrier: odd blocks
  // go backwards, and one warp, another in each block, is late: it runs when no other can.
  bool advance();
  bool done() const { return left_ == 0; }

  // The thread that runs:
  static ThreadBlock& mine() { return *running_; }
  int thread() const { return thread_; }
  int lane() const { return thread_ % 32; }
  uint3 thread_index() const { return {static_cast<unsigned>(thread_), 0, 0}; }
  uint3 index() const { return index_; }
  dim3 grid() const { return grid_; }
  dim3 size() const { return dim3(static_cast<unsigned>(fibers_.size())); }
  uint8_t* shared() const { return shared_; }
  uint32_t shared_address(const void* p) const {
    return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - shared_);
  }
  Mbarrier& barrier(uint32_t address) { return barriers_[address]; }
  Later<Copy>& copies() { return fibers_[thread_].copies; }
  // While phase & mask is value.
  void wait_while(const int64_t& phase, int64_t mask, int64_t value);
  // In a loop that waits for what another thread block writes.
  void let_others();
  void meet_block() { meet(all_, static_cast<int>(fibers_.size())); }
  void meet_group() { meet(groups_[thread_ / 128], 128); }
  void meet_warp() { meet(warps_[thread_ / 32], 32); }
  // Named barriers: some of `threads` arrive, the others wait for all.
  void arrive_at(int barrier, int threads) { arrive(named_[barrier], threads); }
  void meet_at(int barrier, int threads) { meet(named_[barrier], threads); }
  void meet_cluster() {
    if (cluster_size_ > 1) meet(cluster_->of_cluster_, static_cast<int>(fibers_.size()) * cluster_size_);
  }
  // The shared memory of the cluster's CTA `rank`.
  const uint8_t* shared_of(int rank) const {
    return cluster_size_ == 1 || cluster_ + rank == this ? shared_ : cluster_[rank].memory_;
  }
  // Values that the warp's threads bring, by lane, until the warp's next exchange but one.
  template <class T>
  class Brought;
  template <class T>
  Brought<T> exchange(const T& mine);

 private:
  struct Fiber {
    ucontext_t start;
    jmp_buf place;
    std::unique_ptr<char[]> stack;
    bool started = false, done = false;
    bool looks = false;              // for another block's doing: goes on once an advance()
    const int64_t* phase = nullptr;  // waited for
    int64_t mask = 0, value = 0;
    Later<Copy> copies;
    bool waits() const { return phase != nullptr && (*phase & mask) == value; }
  };
  struct alignas(16) Slot {
    std::byte bytes[32];
  };
  static void enter();
  bool pass(bool late, bool looking);
  void resume(Fiber& fiber);
  void leave();
  static bool arrive(Meeting& at, int threads);  // true for the last
  void meet(Meeting& at, int threads);

  static ThreadBlock* running_;
  std::vector<Fiber> fibers_;
  size_t left_ = 0;
  jmp_buf scheduler_;
  const std::function<void()>* kernel_ = nullptr;
  uint8_t* shared_;
  int thread_ = 0;
  uint3 index_{};
  dim3 grid_;
  ThreadBlock* cluster_ = nullptr;
  int cluster_size_ = 1;
  uint8_t* memory_ = nullptr;
  Meeting all_, of_cluster_;
  std::vector<Meeting> warps_, groups_;
  std::array<Meeting, 16> named_;
  std::vector<Slot> brought_[2];
  std::vector<uint8_t> turns_;  // which of the two is a thread's next
  std::unordered_map<uint32_t, Mbarrier> barriers_;
};

// A grid's blocks, one after the other, or all at once, as they are on a device that has room for them, in
// clusters of so many. devices: that many grids at once; blockIdx.z says of which. False if threads wait
// forever.
bool run_in_turn(dim3 grid, int threads, std::span<uint8_t> shared, const std::function<void()>& kernel);
bool run_at_once(unsigned blocks, int threads, std::span<uint8_t> shared, const std::function<void()>& kernel,
                 unsigned cluster = 1, unsigned devices = 1);

template <class T>
class ThreadBlock::Brought {
 public:
  explicit Brought(const Slot* first) : first_(first) {}
  T operator[](int lane) const {
    T value;
    std::memcpy(&value, first_[lane].bytes, sizeof(T));
    return value;
  }

 private:
  const Slot* first_;
};

template <class T>
ThreadBlock::Brought<T> ThreadBlock::exchange(const T& mine) {
  static_assert(sizeof(T) <= sizeof(Slot));
  std::vector<Slot>& brought = brought_[turns_[thread_] ^= 1];
  std::memcpy(brought[thread_].bytes, &mine, sizeof(T));
  meet_warp();
  return Brought<T>(&brought[thread_ - lane()]);
}

}  // namespace moesaic::cuda::on_host
