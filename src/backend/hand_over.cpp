#include "backend/hand_over.h"

#include <chrono>
#include <utility>

#include "base/pause_cpu.h"

namespace moesaic {
namespace {

constexpr size_t kAlignment = 128;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Sizes {
  size_t words, rows, choices;  // bytes of the words, of [rows, hidden] and of [rows, top_k]
};
Sizes sizes(int rows, int hidden, int top_k) {
  const auto bytes = [&](int cols) {
    return aligned(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
  };
  return {aligned(sizeof(HandOverWords)), bytes(hidden), bytes(top_k)};
}

// A device's word, which is not an atomic's.
std::atomic_ref<uint32_t> word(uint32_t& w) { return std::atomic_ref(w); }

}  // namespace

size_t hand_over_bytes(int rows, int hidden, int top_k) {
  const Sizes s = sizes(rows, hidden, top_k);
  return s.words + 2 * s.rows + 2 * s.choices;
}

HandOver hand_over_in(std::byte* memory, int rows, int hidden, int top_k) {
  const Sizes s = sizes(rows, hidden, top_k);
  const auto take = [&](size_t bytes) { return std::exchange(memory, memory + bytes); };
  HandOver at;
  at.words = reinterpret_cast<HandOverWords*>(take(s.words));
  at.normed = reinterpret_cast<float*>(take(s.rows));
  at.out = reinterpret_cast<float*>(take(s.rows));
  at.ids = reinterpret_cast<int32_t*>(take(s.choices));
  at.weights = reinterpret_cast<float*>(take(s.choices));
  at.top_k = top_k;
  return at;
}

HandOverServer::HandOverServer(const HandOver& at, HostExperts& experts, ExpertUse* use)
    : at_(at),
      experts_(experts),
      use_(use),
      last_(at.words->posted),
      seen_(at.words->posted),
      thread_([this] { serve(); }) {}

HandOverServer::~HandOverServer() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  wanted_.notify_one();
  thread_.join();
}

void HandOverServer::expect(uint32_t last_epoch) {
  {
    const std::scoped_lock lock(mutex_);
    last_ = last_epoch;
  }
  wanted_.notify_one();
}

void HandOverServer::forget() {
  const std::scoped_lock lock(mutex_);
  last_ = word(at_.words->posted).load(std::memory_order_acquire);
}

Status HandOverServer::failure() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(failure_, {});
}

void HandOverServer::serve() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wanted_.wait(lock, [&] { return ended_ || expects(seen_); });
    }
    if (ended_) return;
    uint32_t epoch = 0;
    if (wait_for_post(epoch)) answer(epoch);
  }
}

// False: nothing is expected any more. Awake for as long as the device's part of a step that only decodes may
// last; while it reads a long prompt there is time for naps.
bool HandOverServer::wait_for_post(uint32_t& epoch) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kAwake(5000), kNap(50);
  constexpr int kLooks = 64;  // between looks at the clock
  const Clock::time_point began = Clock::now();
  while (true) {
    for (int i = 0; i < kLooks; ++i) {
      epoch = word(at_.words->posted).load(std::memory_order_acquire);
      if (epoch != seen_) return true;
      pause_cpu();
    }
    if (ended_ || !expects(seen_)) return false;
    if (Clock::now() - began > kAwake) {
      std::this_thread::sleep_for(kNap);
    } else {
      std::this_thread::yield();  // where there are more threads than CPUs
    }
  }
}

void HandOverServer::answer(uint32_t epoch) {
  const RoutedRows rows{
      .rows = at_.words->rows, .normed = at_.normed, .ids = at_.ids, .weights = at_.weights};
  Status status;
  if (rows.rows > 0) status = experts_.run(at_.words->layer, rows, at_.out);
  at_.words->failed = status.ok() ? 0 : 1;
  if (!status.ok()) {
    const std::scoped_lock lock(mutex_);
    failure_ = status;
  }
  seen_ = epoch;
  const int layer = at_.words->layer;
  const std::span ids(at_.ids, static_cast<size_t>(rows.rows) * static_cast<size_t>(at_.top_k));
  // Before the answer, behind which the device writes over the ids.
  if (use_ != nullptr && status.ok()) use_->count(layer, ids);
  word(at_.words->answered).store(epoch, std::memory_order_release);
}

}  // namespace moesaic
