// Words that the devices of one host hand each other, and it. All of the devices are in one thread here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {

inline void st_relaxed_system(uint64_t* to, uint64_t value) { *to = value; }
inline uint64_t ld_relaxed_system(const uint64_t* from) {
  on_host::ThreadBlock::mine().let_others();
  return *from;
}
inline void st_release_system(uint32_t* to, uint32_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_release);
}
inline uint32_t ld_acquire_system(const uint32_t* from) {
  on_host::ThreadBlock::mine().let_others();
  return *from;
}
// One look lasts until the epoch is there, though not for ever: who waits counts looks.
inline bool host_has_stored(const uint32_t* from, uint32_t epoch) {
  constexpr std::chrono::milliseconds kLook(50);
  const std::atomic_ref word(*const_cast<uint32_t*>(from));
  const auto end = std::chrono::steady_clock::now() + kLook;
  while (static_cast<int32_t>(word.load(std::memory_order_acquire) - epoch) < 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace moesaic::cuda
