#ifdef _FORTIFY_SOURCE  // its longjmp ends the program when it leaves for another stack
#undef _FORTIFY_SOURCE
#endif
#include "backend/cuda/testing/host_simulator/thread_block.h"

#include <algorithm>

namespace moesaic::cuda::on_host {
namespace {
constexpr size_t kStackBytes = 32 << 10;
constexpr int kUnwritten = 0x7F;  // NaN as F16, vast as F32
// Threads that only look, and find what they look for, look for the next thing as often as this at most.
constexpr int kIdleRounds = 64;
}  // namespace

ThreadBlock* ThreadBlock::running_ = nullptr;

ThreadBlock::ThreadBlock(int threads, uint8_t* shared)
    : fibers_(static_cast<size_t>(threads)),
      shared_(shared),
      warps_((fibers_.size() + 31) / 32),
      groups_((fibers_.size() + 127) / 128),
      brought_{std::vector<Slot>(fibers_.size()), std::vector<Slot>(fibers_.size())},
      turns_(fibers_.size()) {
  for (Fiber& fiber : fibers_) fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
}

// A fiber that has run one block's thread goes on with the next one's: a new context would ask the system.
void ThreadBlock::enter() {
  for (;;) {
    (*running_->kernel_)();
    running_->fibers_[running_->thread_].done = true;
    running_->leave();
  }
}

// By jumps between the stacks: contexts would ask the system for the signal mask each time.
void ThreadBlock::resume(Fiber& fiber) {
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}
void ThreadBlock::leave() {
  if (_setjmp(fibers_[thread_].place) == 0) _longjmp(scheduler_, 1);
}

void ThreadBlock::begin(uint3 index, dim3 grid, const std::function<void()>& kernel) {
  kernel_ = &kernel, index_ = index, grid_ = grid;
  all_ = of_cluster_ = {};
  std::ranges::fill(warps_, Meeting{});
  std::ranges::fill(groups_, Meeting{});
  named_.fill({});
  std::ranges::fill(turns_, 0);
  barriers_.clear();
  left_ = fibers_.size();
  for (Fiber& fiber : fibers_) {
    const bool goes_on = fiber.started && fiber.done;
    fiber.done = fiber.looks = false, fiber.phase = nullptr;
    fiber.copies = {};
    if (goes_on) continue;
    fiber.started = false;
    getcontext(&fiber.start);
    fiber.start.uc_stack = {.ss_sp = fiber.stack.get(), .ss_flags = 0, .ss_size = kStackBytes};
    makecontext(&fiber.start, &ThreadBlock::enter, 0);
  }
}

// Runs what can go on of the late warp, or of the others. looking: also threads that look for another block's
// doing.
bool ThreadBlock::pass(bool late, bool looking) {
  const int threads = static_cast<int>(fibers_.size()), late_warp = index_.x % warps_.size();
  bool moved = false;
  for (int i = 0; i < threads; ++i) {
    thread_ = index_.x % 2 == 0 ? i : threads - 1 - i;
    Fiber& fiber = fibers_[thread_];
    if (fiber.done || fiber.waits() || (fiber.looks && !looking) || (thread_ / 32 == late_warp) != late)
      continue;
    fiber.phase = nullptr, fiber.looks = false;
    resume(fiber);
    if (fiber.done) --left_;
    moved |= !fiber.looks;
  }
  return moved;
}

bool ThreadBlock::advance() {
  running_ = this;
  bool any = pass(false, true);
  const auto others = [&] {
    while (pass(false, false)) any = true;
  };
  others();
  for (bool moved = pass(true, true); moved; moved = pass(true, false)) any = true, others();
  return any;
}

void ThreadBlock::wait_while(const int64_t& phase, int64_t mask, int64_t value) {
  if ((phase & mask) != value) return;
  Fiber& fiber = fibers_[thread_];
  fiber.phase = &phase, fiber.mask = mask, fiber.value = value;
  leave();
}

void ThreadBlock::let_others() {
  fibers_[thread_].looks = true;
  leave();
}

bool ThreadBlock::arrive(Meeting& at, int threads) {
  if (++at.arrived < threads) return false;
  at.arrived = 0, ++at.phase;
  return true;
}
void ThreadBlock::meet(Meeting& at, int threads) {
  const int64_t phase = at.phase;
  if (!arrive(at, threads)) wait_while(at.phase, ~int64_t{0}, phase);
}

bool run_in_turn(dim3 grid, int threads, std::span<uint8_t> shared, const std::function<void()>& kernel) {
  ThreadBlock block(threads, shared.data());
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
    std::ranges::fill(shared, kUnwritten);
    block.begin({i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}, grid, kernel);
    for (int idle = 0; idle < kIdleRounds && !block.done(); ++idle) {
      if (block.advance()) idle = 0;
    }
    if (!block.done()) return false;
  }
  return true;
}

bool run_at_once(unsigned blocks, int threads, std::span<uint8_t> shared, const std::function<void()>& kernel,
                 unsigned cluster, unsigned devices) {
  const unsigned count = blocks * devices;
  std::vector<ThreadBlock> all;
  all.reserve(count);
  std::vector<std::vector<uint8_t>> memories(count, std::vector<uint8_t>(shared.size(), kUnwritten));
  for (unsigned i = 0; i < count; ++i)
    all.emplace_back(threads, shared.data()).begin({i % blocks, 0, i / blocks}, dim3(blocks), kernel);
  for (unsigned i = 0; i < count; ++i)
    all[i].join_cluster(&all[i / cluster * cluster], static_cast<int>(cluster), memories[i].data());
  for (int idle = 0; idle < kIdleRounds && !std::ranges::all_of(all, &ThreadBlock::done); ++idle) {
    for (unsigned i = 0; i < count; ++i) {
      if (all[i].done()) continue;
      std::ranges::copy(memories[i], shared.begin());
      if (all[i].advance()) idle = 0;
      std::ranges::copy(shared, memories[i].begin());
      if (all[i].done()) std::ranges::fill(memories[i], kUnwritten);  // nobody may read it any more
    }
  }
  return std::ranges::all_of(all, &ThreadBlock::done);
}

}  // namespace moesaic::cuda::on_host
