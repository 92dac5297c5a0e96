// Hopper's asynchronous copies and the barriers that they complete on.
#pragma once

#include <cstdint>

namespace moesaic::cuda::sm90 {

__device__ __forceinline__ uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// Makes the compiler keep the address in a register. Otherwise it computes it again, from a special register
// that is slow to read where there are clusters.
__device__ __forceinline__ uint32_t kept(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}
// Makes the compiler have these values in registers at this point, not read or compute them later.
__device__ __forceinline__ void materialize(const uint8_t*& a, uint64_t& b, const void* c, int d) {
  asm volatile("" : "+l"(a), "+l"(b) : "l"(c), "r"(d));
}
template <class T>
__device__ __forceinline__ T ld_shared(uint32_t address) {
  T v;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  } else {
    static_assert(sizeof(T) == 2);
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  }
  return v;
}
__device__ __forceinline__ void st_shared(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ void st_shared(uint32_t address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void mbarrier_init(uint64_t* b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(b)), "r"(n) : "memory");
}
// Orders this thread's reads and writes before the copies that start behind the next barrier.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// By the thread that initialised them, before a copy or another thread uses them.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_proxy_async();
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* b) { mbarrier_arrive(smem_addr(b)); }
__device__ __forceinline__ void mbarrier_arrive(uint64_t* b, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(b)), "r"(times) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* b, int bytes) {
  mbarrier_arrive_expect_tx(smem_addr(b), bytes);
}
__device__ __forceinline__ void mbarrier_wait(uint32_t b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra "
      "W;\nD:\n}" ::"r"(b),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint64_t* b, uint32_t parity) {
  mbarrier_wait(smem_addr(b), parity);
}
// A warp's first lane arrives, behind __syncwarp(), for all its lanes; a bulk copy may then overwrite what
// they have read. racecheck counts only the arriving lane's accesses as ordered, and wants a fence between
// reads and the copy (docs/design/cuda.md). So in a MOESAIC_RACECHECK build all lanes arrive, behind a fence,
// and barriers of warps expect kWarpArrivals times as many arrivals.
#ifdef MOESAIC_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif
__device__ __forceinline__ void fence_reads() {
  if (kWarpArrivals > 1) fence_proxy_async();
}
__device__ __forceinline__ bool arrives(bool first_lane) {
  fence_reads();
  return kWarpArrivals > 1 || first_lane;
}
// True if the phase has ended; does not wait for it.
__device__ __forceinline__ bool mbarrier_test_wait(uint64_t* b, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(smem_addr(b)), "r"(parity)
      : "memory");
  return ended != 0;
}
// A position in a ring of kSize stages, and the parity of the barriers there.
template <int kSize>
struct RingPlace {
  int index = 0, phase = 0;
  __device__ __forceinline__ void next() {
    if (++index == kSize) index = 0, phase ^= 1;
  }
};
__device__ __forceinline__ void cp_async_bulk(uint32_t dst, const void* src, int bytes, uint32_t bar,
                                              uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(dst),
      "l"(src), "r"(bytes), "r"(bar), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void cp_async_bulk(void* dst, const void* src, int bytes, uint64_t* bar,
                                              uint64_t policy) {
  cp_async_bulk(smem_addr(dst), src, bytes, smem_addr(bar), policy);
}
__device__ __forceinline__ void cp_async_bulk(void* dst, const void* src, int bytes, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          smem_addr(dst)),
      "l"(src), "r"(bytes), "r"(smem_addr(bar))
      : "memory");
}
// Reads memory that another CTA may just have written.
__device__ __forceinline__ uint4 ld_volatile(const void* p) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
// In global memory: who sees the value sees what the CTA wrote before its last barrier.
__device__ __forceinline__ void st_release(int* to, int value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ int ld_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// The upper half of the device's clock in nanoseconds: a tick is 4.3 s.
__device__ __forceinline__ uint32_t clock_ticks() {
  uint32_t ticks;
  asm volatile("mov.u32 %0, %globaltimer_hi;" : "=r"(ticks));
  return ticks;
}
inline constexpr uint32_t kLooksAtOnce = 1024;  // looks in a wait for another CTA between two at the clock
// The 128 threads of a warpgroup meet. barrier: 1 to 15, theirs alone.
__device__ __forceinline__ void warpgroup_barrier(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}
// Some of kThreads threads arrive, the others wait for all. barrier: 1 to 15.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void named_barrier_wait(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
// Only code for one chip or one family has setmaxnreg.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL) || \
    defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define MOESAIC_MOVES_REGISTERS 1
#else
#define MOESAIC_MOVES_REGISTERS 0
#endif
// By all warps of a warpgroup, of a kernel whose registers are bounded at its launch. Without the instruction
// every warp keeps as many as it had there.
template <int kCount>
__device__ __forceinline__ void warpgroup_reg_alloc() {
#if MOESAIC_MOVES_REGISTERS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
#if MOESAIC_MOVES_REGISTERS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t p;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}
__device__ __forceinline__ uint64_t evict_normal_policy() {
  uint64_t p;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(p));
  return p;
}
__device__ __forceinline__ void cp_async(void* dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async(void* dst, const void* src, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(smem_addr(dst)), "l"(src),
               "l"(policy)
               : "memory");
}
// One of the barrier's arrivals, once this thread's copies so far have landed.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint64_t* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_addr(b)) : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- thread block clusters ----
__device__ __forceinline__ uint32_t block_rank_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Orders no memory but the barriers that fence_mbarrier_init() has published.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Meets all threads of the cluster. Each then sees what the others wrote before. Whole warps call it.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
}
// The address of the same variable in the shared memory of another CTA of the cluster.
__device__ __forceinline__ uint32_t mapa(const void* p, uint32_t rank) {
  uint32_t a;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(smem_addr(p)), "r"(rank));
  return a;
}
__device__ __forceinline__ float4 ld_cluster(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// Completes 16 (8) bytes on `barrier`, in the same CTA's memory: who waits on it sees them.
__device__ __forceinline__ void st_async(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void st_async(uint32_t address, float2 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(v.x), "f"(v.y), "r"(barrier)
      : "memory");
}

}  // namespace moesaic::cuda::sm90
