// Words that the devices of one host hand each other, between the host's threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace moesaic::cuda {

inline void st_relaxed_system(uint64_t* to, uint64_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_relaxed);
}
inline uint64_t ld_relaxed_system(const uint64_t* from) {
  return std::atomic_ref(*const_cast<uint64_t*>(from)).load(std::memory_order_relaxed);
}
inline void st_release_system(uint32_t* to, uint32_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_release);
}
inline uint32_t ld_acquire_system(const uint32_t* from) {
  return std::atomic_ref(*const_cast<uint32_t*>(from)).load(std::memory_order_acquire);
}

}  // namespace moesaic::cuda
