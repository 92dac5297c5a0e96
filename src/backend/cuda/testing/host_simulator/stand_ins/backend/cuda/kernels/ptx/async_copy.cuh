// kernels/ptx/async_copy.cuh on the host, of which the kernels under test use this much.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda::sm90 {

using on_host::ThreadBlock;

inline uint32_t smem_addr(const void* p) { return ThreadBlock::mine().shared_address(p); }
inline uint32_t kept(uint32_t address) { return address; }
inline void materialize(const uint8_t*, uint64_t, const void*, int) {}
template <class T>
T ld_shared(uint32_t address) {
  return *reinterpret_cast<const T*>(ThreadBlock::mine().shared() + address);
}
template <class T>
void st_shared(uint32_t address, T v) {
  *reinterpret_cast<T*>(ThreadBlock::mine().shared() + address) = v;
}
inline void mbarrier_init(uint64_t* b, int n) {
  ThreadBlock::mine().barrier(smem_addr(b)) = {.count = n, .pending = n};
}
inline void fence_mbarrier_init() {}
inline void fence_proxy_async() {}
inline void mbarrier_arrive(uint32_t b) { ThreadBlock::mine().barrier(b).arrive(); }
inline void mbarrier_arrive(uint64_t* b) { mbarrier_arrive(smem_addr(b)); }
inline void mbarrier_arrive_expect_tx(uint64_t* b, int bytes) {
  ThreadBlock::mine().barrier(smem_addr(b)).expect(bytes);
}
inline void mbarrier_wait(uint32_t b, uint32_t parity) {
  ThreadBlock::mine().wait_while(ThreadBlock::mine().barrier(b).phase, 1, parity);
}
inline void mbarrier_wait(uint64_t* b, uint32_t parity) { mbarrier_wait(smem_addr(b), parity); }
inline void cluster_meet() { ThreadBlock::mine().meet_cluster(); }
// An address in a cluster: the rank above the 18 bits of an address in a CTA.
inline uint32_t mapa(const void* p, uint32_t rank) { return rank << 18 | smem_addr(p); }
inline float4 ld_cluster(uint32_t address) {
  const uint8_t* of = ThreadBlock::mine().shared_of(static_cast<int>(address >> 18));
  return *reinterpret_cast<const float4*>(of + (address & ((1u << 18) - 1)));
}
inline constexpr int kWarpArrivals = 1;
inline bool arrives(bool first_lane) { return first_lane; }
template <int kSize>
struct RingPlace {
  int index = 0, phase = 0;
  void next() {
    if (++index == kSize) index = 0, phase ^= 1;
  }
};
// As the device does, a copy whose ends are not aligned ends the program.
inline void copy_aligned(void* dst, const void* src, int bytes) {
  if ((reinterpret_cast<uintptr_t>(src) | smem_addr(dst) | static_cast<unsigned>(bytes)) % 16 != 0)
    std::abort();
  std::memcpy(dst, src, static_cast<size_t>(bytes));
}
inline void cp_async_bulk(void* dst, const void* src, int bytes, uint64_t* b) {
  copy_aligned(dst, src, bytes);
  ThreadBlock::mine().barrier(smem_addr(b)).land(bytes);
}
inline void cp_async_bulk(void* dst, const void* src, int bytes, uint64_t* b, uint64_t) {
  cp_async_bulk(dst, src, bytes, b);
}
inline uint64_t evict_first_policy() { return 0; }
inline uint64_t evict_normal_policy() { return 0; }
inline void cp_async(void* dst, const void* src) { ThreadBlock::mine().copies().open.push_back({dst, src}); }
inline void cp_async_commit_group() { ThreadBlock::mine().copies().commit(); }
template <int kPending>
void cp_async_wait_group() {
  ThreadBlock::mine().copies().wait(kPending, [](const std::vector<on_host::Copy>& group) {
    for (const on_host::Copy& copy : group) copy_aligned(copy.to, copy.from, 16);
  });
}
inline uint4 ld_volatile(const void* p) {
  ThreadBlock::mine().let_others();
  return *static_cast<const uint4*>(p);
}
inline void st_release(int* to, int value) { *to = value; }
inline int ld_acquire(const int* from) { return *from; }
// A clock that somebody who waits for nothing never looks at. While a test holds it nobody gives up.
inline bool clock_is_held = false;
inline uint32_t clock_ticks() {
  static uint32_t ticks = 0;
  return clock_is_held ? ticks : ++ticks;
}
inline constexpr uint32_t kLooksAtOnce = 4;
inline void warpgroup_barrier(int) { ThreadBlock::mine().meet_group(); }
template <int kThreads>
void named_barrier_arrive(int barrier) {
  ThreadBlock::mine().arrive_at(barrier, kThreads);
}
template <int kThreads>
void named_barrier_wait(int barrier) {
  ThreadBlock::mine().meet_at(barrier, kThreads);
}
template <int kCount>
void warpgroup_reg_alloc() {}
template <int kCount>
void warpgroup_reg_dealloc() {}

}  // namespace moesaic::cuda::sm90
