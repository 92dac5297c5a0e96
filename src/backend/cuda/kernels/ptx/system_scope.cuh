// Words that the devices of one host hand each other, and it. A load or store of one aligned word is whole.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

// Relaxed: orders nothing but itself.
__device__ __forceinline__ void st_relaxed_system(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t ld_relaxed_system(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
// A fence and a store: a store that releases would be a second fence. Who sees the word by
// ld_acquire_system() sees all that this thread, and those that it has met at a barrier, have stored before.
__device__ __forceinline__ void st_release_system(uint32_t* to, uint32_t value) {
  asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t ld_acquire_system(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// A look at a word that a thread of the host stores: whether it has this epoch or a later one. Acquires.
__device__ __forceinline__ bool host_has_stored(const uint32_t* word, uint32_t epoch) {
  return static_cast<int32_t>(ld_acquire_system(word) - epoch) >= 0;
}

}  // namespace moesaic::cuda
