// The matrix product for many tokens. Persistent thread blocks walk over tiles of 192 rows and one job's
// tokens (8 to 128). Warp 0 fills a ring of stages in shared memory with bulk copies; three warpgroups have
// 64 rows each and feed wgmma: weights from registers, where they are expanded one block of 32 columns ahead
// of the tensor cores, activations from the stage. The accumulators stay in registers for the whole
// contraction.
//
//   registers: 160 a consumer thread (64 of them accumulators), 32 a producer's
//   bytes: weights once per job, a job's activations once per 192 rows (both from L2 where neighbours share
//   them)
#pragma once

#include "backend/cuda/kernels.cuh"
#include "backend/cuda/sm90a/gemm_wide.h"
#include "backend/cuda/sm90a/ptx.cuh"
#include "backend/cuda/sm90a/slab.cuh"
#include "backend/cuda/sm90a/wgmma.cuh"
#include "backend/cuda/tile.cuh"

namespace moesaic::cuda::sm90a {

inline constexpr int kGroups = 3;  // warpgroups that consume
inline constexpr int kGroupRows = 64;
inline constexpr int kTileRows = kGroups * kGroupRows;
inline constexpr int kWideThreads = 128 * (1 + kGroups);
inline constexpr int kSharedLimit = 232448;

struct WideParams {
  const uint8_t* weights;
  Tiles x;
  int row_tiles;  // of an expert
  int units;      // dense: of 32 rows
  int stages;     // along the contraction
  float factor;
};

__device__ inline Job job_at(const Tiles& t, int index) {
  if (t.jobs != nullptr) return t.jobs[index];
  return {0, index * t.tile, min(t.tile, t.tokens - index * t.tile), index * t.tile};
}
__device__ inline int jobs_of(const Tiles& t) {
  return t.jobs != nullptr ? *t.job_count : (t.tokens + t.tile - 1) / t.tile;
}

// ---- weights: what a stage holds of them and how a warp's 16 rows become A fragments ----

// MXFP4 from slabs. A weight becomes value * 2^(s - top), exact in F16 where the block's scale is within 24
// binades of the row's largest, `top`; 2^(top - 128), which is owed, is factor(). A stage is what one warp of
// the decode kernel takes: 6 blocks.
template <bool kDown>
struct SlabWeights {
  static constexpr bool kBf16 = false;
  static constexpr int kBlocks = kBlocksPerWarp, kStageBytes = kTileRows / 8 * kWarpBytes;
  uint32_t words[2][6], scales[2][3];

  // What a row's scales are measured by, of the rows lane / 4 and + 8.
  struct Tops {
    uint8_t top[2];
    __device__ void load(const uint8_t* weights, int expert, int row, int lane) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        top[h] = __ldg(weights + expert * (kDown ? kFc2Bytes : kFc1Bytes) +
                       slab_offset(kDown, row / 8 + h, kTopThird, kThirdTop + lane / 4));
    }
    __device__ float factor(int h) const { return __uint_as_float((top[h] - 1u) << 23); }
  };

  __device__ static int bytes(const WideParams&, int) { return kStageBytes; }
  // Lane i copies slab i.
  __device__ static void fetch(const WideParams& p, int expert, int row_tile, int stage, uint8_t* to,
                               uint64_t* full, int lane) {
    if (lane >= kTileRows / 8) return;
    const uint8_t* from = p.weights + expert * (kDown ? kFc2Bytes : kFc1Bytes) +
                          slab_offset(kDown, row_tile * (kTileRows / 8) + lane, stage / kWarpsPerThird,
                                      stage % kWarpsPerThird * kWarpBytes);
    bulk_copy(to + lane * kWarpBytes, from, kWarpBytes, full);
  }
  __device__ void load(const uint8_t* stage, int warp, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* slab = stage + (2 * warp + h) * kWarpBytes;
      const uint4 u = *reinterpret_cast<const uint4*>(slab + lane * 16);
      const uint2 v = *reinterpret_cast<const uint2*>(slab + kWarpTail + lane * 8);
      words[h][0] = u.x, words[h][1] = u.y, words[h][2] = u.z, words[h][3] = u.w;
      words[h][4] = v.x, words[h][5] = v.y;
#pragma unroll
      for (int i = 0; i < 3; ++i)
        scales[h][i] = reinterpret_cast<const uint16_t*>(slab + kWarpScales)[lane / 4 * 3 + i];
    }
  }
  // 2^(15 + s - top) twice, zero below F16's normal numbers.
  __device__ static __half2 scale(uint32_t s, uint32_t top) {
    const uint32_t bits =
        static_cast<uint32_t>(max(static_cast<int>(s) + 30 - static_cast<int>(top), 0)) * 0x04000400u;
    return *reinterpret_cast<const __half2*>(&bits);
  }
  __device__ void expand(int block, const Tops& tops, uint32_t (&a)[8]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const __half2 factor = scale(scales[h][block / 2] >> 8 * (block % 2) & 255, tops.top[h]);
      uint32_t d[4];
      decode(words[h][block], d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&d[i]), factor);
        a[2 * i + h] = *reinterpret_cast<const uint32_t*>(&v);
      }
    }
  }
};

// 16-bit weights in matrix.h's order, two blocks a stage.
template <bool kBf16_>
struct PlainWeights {
  static constexpr bool kBf16 = kBf16_;
  static constexpr int kBlocks = 2, kUnitBlock = 2048, kStageBytes = kTileRows / kUnit * kBlocks * kUnitBlock;
  const uint8_t* at;

  struct Tops {
    __device__ void load(const uint8_t*, int, int, int) {}
    __device__ float factor(int) const { return 1.0f; }
  };
  __device__ static int units(const WideParams& p, int row_tile) {
    return min(kTileRows / kUnit, p.units - row_tile * (kTileRows / kUnit));
  }
  __device__ static int bytes(const WideParams& p, int row_tile) {
    return units(p, row_tile) * kBlocks * kUnitBlock;
  }
  // Lane i copies unit i.
  __device__ static void fetch(const WideParams& p, int, int row_tile, int stage, uint8_t* to, uint64_t* full,
                               int lane) {
    if (lane >= units(p, row_tile)) return;
    const int64_t unit = row_tile * (kTileRows / kUnit) + lane;
    bulk_copy(to + lane * kBlocks * kUnitBlock,
              p.weights + (unit * p.stages + stage) * (kBlocks * kUnitBlock), kBlocks * kUnitBlock, full);
  }
  __device__ void load(const uint8_t* stage, int warp, int lane) {
    at = stage + warp / 2 * (kBlocks * kUnitBlock) + warp % 2 * (kUnitBlock / 2) + lane * 16;
  }
  __device__ void expand(int block, const Tops&, uint32_t (&a)[8]) const {
    const uint4 lo = *reinterpret_cast<const uint4*>(at + block * kUnitBlock);
    const uint4 hi = *reinterpret_cast<const uint4*>(at + block * kUnitBlock + kUnitBlock / 4);
    a[0] = lo.x, a[1] = lo.y, a[2] = lo.z, a[3] = lo.w;
    a[4] = hi.x, a[5] = hi.y, a[6] = hi.z, a[7] = hi.w;
  }
};

// ---- the ring ----

template <class Weights, int kTile, int kStaging>
struct WideRing {
  static constexpr int kTokenBytes = Weights::kBlocks * 64;  // of a stage
  static constexpr int kActBytes = kTile * kTokenBytes;
  static constexpr int kBytes = kActBytes + (Weights::kStageBytes + 1023) / 1024 * 1024;
  static constexpr int kBarriers = 1024;
  static constexpr int kStages = (kSharedLimit - kBarriers - kStaging) / kBytes;
  static constexpr int kShared = kStages * kBytes + kStaging + kBarriers;
  static_assert(kStages >= 2);

  uint8_t* base;
  int stage = 0, phase = 0;
  __device__ explicit WideRing(uint8_t* shared) : base(shared) {}
  __device__ uint8_t* activations(int s) const { return base + s * kBytes; }
  __device__ uint8_t* weights(int s) const { return base + s * kBytes + kActBytes; }
  __device__ uint8_t* staging() const { return base + kStages * kBytes; }
  __device__ uint64_t* full(int s) const { return reinterpret_cast<uint64_t*>(staging() + kStaging) + s; }
  __device__ uint64_t* empty(int s) const { return full(s) + kStages; }
  __device__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// ---- producer: warp 0 ----

template <class Weights, class Ring>
__device__ void produce(const WideParams& p, Ring ring) {
  const int lane = threadIdx.x;
  const int tiles = jobs_of(p.x) * p.row_tiles;
  const auto weights = [&](const Job& job, int row_tile, int step, int stage) {
    if (lane == 0)
      mbar_expect(ring.full(stage), Weights::bytes(p, row_tile) + tile_width(job.count) * Ring::kTokenBytes);
    __syncwarp();
    Weights::fetch(p, job.expert, row_tile, step, ring.weights(stage), ring.full(stage), lane);
  };
  const auto activations = [&](const Job& job, int step, int stage) {
    if (lane != 0) return;
    const int width = tile_width(job.count);
    const uint8_t* from =
        static_cast<const uint8_t*>(p.x.data) + static_cast<int64_t>(job.start) * p.x.cols * 2;
    bulk_copy(ring.activations(stage), from + static_cast<int64_t>(step) * width * Ring::kTokenBytes,
              width * Ring::kTokenBytes, ring.full(stage));
  };
  int first = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Job job = job_at(p.x, tile / p.row_tiles);
    const int row_tile = tile % p.row_tiles;
    if (tile == blockIdx.x) {  // weights do not depend on the kernel before
      first = min(Ring::kStages, p.stages);
      for (int s = 0; s < first; ++s) weights(job, row_tile, s, s);
      wait_for_predecessor();
      for (int s = 0; s < first; ++s) activations(job, s, s), ring.next();
    }
    for (int s = first; s < p.stages; ++s, ring.next()) {
      mbar_wait(ring.empty(ring.stage), ring.phase ^ 1);
      weights(job, row_tile, s, ring.stage);
      activations(job, s, ring.stage);
    }
    first = 0;
  }
}

// ---- consumers ----

// The product of one block for tile_width() = 8 or 16 * sixteenths tokens, found between kLow and kHigh
// sixteenths. The widths branch here and share everything else: with a loop for each, the compiler runs out
// of registers and serialises.
template <bool kBf16, int kLow, int kHigh, int kSums>
__device__ __forceinline__ void multiply(int sixteenths, float (&sum)[kSums], const uint32_t (&a)[8],
                                         uint32_t x, int block) {
  if constexpr (kLow < kHigh) {
    constexpr int kMiddle = (kLow + kHigh) / 2;
    if (sixteenths <= kMiddle) return multiply<kBf16, kLow, kMiddle>(sixteenths, sum, a, x, block);
    return multiply<kBf16, kMiddle + 1, kHigh>(sixteenths, sum, a, x, block);
  }
  constexpr int kWidth = kLow == 0 ? 8 : 16 * kLow;
  float(&head)[kWidth / 2] = reinterpret_cast<float(&)[kWidth / 2]>(sum);
  const uint64_t operand = wgmma_operand(x + block / 2 * (kWidth * 128) + block % 2 * 64);
  wgmma_fence();
  Wgmma<kWidth>::template run<kBf16>(head, a, operand);
  Wgmma<kWidth>::template run<kBf16>(head, a + 4, operand + 2);
  wgmma_commit();
}

// One tile's 64 rows of a warpgroup: sum += the whole contraction.
template <class Weights, class Ring, int kSums>
__device__ __forceinline__ void contract(const typename Weights::Tops& tops, int tokens, int stages, int warp,
                                         Ring& ring, float (&sum)[kSums]) {
  const int lane = threadIdx.x % 32, sixteenths = tile_width(tokens) / 16;
  uint32_t a[2][8];
  int before = -1;
#pragma unroll 1
  for (int s = 0; s < stages; ++s, ring.next()) {
    mbar_wait(ring.full(ring.stage), ring.phase);
    Weights w;
    w.load(ring.weights(ring.stage), warp, lane);
    const uint32_t x = smem_addr(ring.activations(ring.stage));
#pragma unroll
    for (int b = 0; b < Weights::kBlocks; ++b) {
      wgmma_wait<1>();  // the product that read a[b & 1] has ended
      if (b == 1 && before >= 0 && threadIdx.x % 128 == 0) mbar_arrive(ring.empty(before));
      w.expand(b, tops, a[b & 1]);
      multiply<Weights::kBf16, 0, kSums / 8>(sixteenths, sum, a[b & 1], x, b);
    }
    before = ring.stage;
  }
  wgmma_wait<0>();
  if (threadIdx.x % 128 == 0) mbar_arrive(ring.empty(before));
}

// Where a warpgroup's sums stand.
struct WidePlace {
  Job job;
  int row;          // of the matrix, the warp's first of 16
  int units;        // dense: of the matrix
  float factor[2];  // of rows lane / 4 and + 8
  uint8_t* staging;
};

// Each pair of rows and token for itself.
template <int kSums, class Epilogue>
__device__ __forceinline__ void finish_tile(const Epilogue& e, const WidePlace& at,
                                            const float (&sum)[kSums]) {
  const int lane = threadIdx.x % 32, unit = at.row / kUnit, pair = at.row % kUnit / 2 + lane / 4;
  if (unit >= at.units) return;
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (8 * i >= at.job.count) break;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int token = 8 * i + lane % 4 * 2 + k;
      if (token < at.job.count)
        finish(e, unit, pair, at.job.first + token, at.job.expert, sum[4 * i + k] * at.factor[0],
               sum[4 * i + 2 + k] * at.factor[1]);
    }
  }
}

__device__ __forceinline__ float wide_swiglu(float gate, float up) {
  gate = fminf(gate, 7.0f);
  up = fminf(fmaxf(up, -7.0f), 7.0f);
  return __fdividef(gate * kHScale, 1.0f + __expf(-1.702f * gate)) * (up + 1.0f);
}

// Gate and up are neighbouring rows, 4 lanes apart: even rows take slab a's pairs and odd ones slab b's, a
// column of h each. The warpgroup's 32 columns go through shared memory, [token][4 chunks], to their tile.
template <int kSums>
__device__ __forceinline__ void finish_tile(const WideSwiGlu& e, const WidePlace& at,
                                            const float (&sum)[kSums]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, odd = g % 2;
  const int column = at.row / 2 + 4 * odd + g / 2;
  const int64_t bias = static_cast<int64_t>(at.job.expert) * kHidden + column;
  const float gate_bias = e.gate_bias[bias], up_bias = e.up_bias[bias];
  const float mine = odd ? at.factor[1] : at.factor[0];
  const float theirs = __shfl_xor_sync(~0u, odd ? at.factor[0] : at.factor[1], 4);
  // Chunk 2 odd + g / 4, byte 4 warp + 2 (g / 2 % 2).
  const int chunk = 2 * odd + g / 4;
  __half* to = reinterpret_cast<__half*>(at.staging + chunk * 16 + warp * 4 + g / 2 % 2 * 2);
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    if (8 * i >= at.job.count) break;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float v0 = sum[4 * i + k], v1 = sum[4 * i + 2 + k];
      const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4) * theirs, own = (odd ? v1 : v0) * mine;
      const float y = wide_swiglu((odd ? other : own) + gate_bias, (odd ? own : other) + up_bias);
      to[(8 * i + lane % 4 * 2 + k) * 32] = __float2half_rn(y);
    }
  }
  const int block = at.row / 64, width = tile_width(at.job.count), group = threadIdx.x / 128;
  asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
  uint8_t* out = e.out + static_cast<int64_t>(at.job.start) * (kHidden * 2) +
                 static_cast<int64_t>(block / 2) * width * 128;
  for (int i = threadIdx.x % 128; i < at.job.count * 4; i += 128) {
    const int token = i / 4, at_chunk = (block % 2 * 4 + i % 4) ^ token % 8;
    *reinterpret_cast<uint4*>(out + token * 128 + at_chunk * 16) =
        *reinterpret_cast<const uint4*>(at.staging + i * 16);
  }
  asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
}

template <class Weights, int kTile, class Ring, class Epilogue>
__device__ void consume(const WideParams& p, Ring ring, const Epilogue& e) {
  const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
  const int tiles = jobs_of(p.x) * p.row_tiles;
  typename Weights::Tops next;
  const auto look_ahead = [&](int tile) {
    if (tile < tiles)
      next.load(p.weights, job_at(p.x, tile / p.row_tiles).expert, tile % p.row_tiles * kTileRows + 16 * warp,
                lane);
  };
  look_ahead(blockIdx.x);
  wait_for_predecessor();
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const typename Weights::Tops tops = next;
    look_ahead(tile + gridDim.x);
    const WidePlace at{.job = job_at(p.x, tile / p.row_tiles),
                       .row = tile % p.row_tiles * kTileRows + 16 * warp,
                       .units = p.units,
                       .factor = {tops.factor(0) * p.factor, tops.factor(1) * p.factor},
                       .staging = ring.staging() + warp / 4 * (kTile * 64)};
    float sum[kTile / 2] = {};
    contract<Weights>(tops, at.job.count, p.stages, warp, ring, sum);
    finish_tile(e, at, sum);
  }
}

template <class Weights, int kTile, class Epilogue>
inline constexpr int kStagingBytes = std::is_same_v<Epilogue, WideSwiGlu> ? kGroups* kTile * 64 : 0;

template <class Weights, int kTile, class Epilogue>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const WideParams p, const Epilogue e) {
  extern __shared__ __align__(1024) uint8_t wide_shared[];
  using Ring = WideRing<Weights, kTile, kStagingBytes<Weights, kTile, Epilogue>>;
  Ring ring(wide_shared);
  if (threadIdx.x == 0) {
    for (int s = 0; s < Ring::kStages; ++s) mbar_init(ring.full(s), 1), mbar_init(ring.empty(s), kGroups);
    mbar_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x < 32) produce<Weights>(p, ring);
    wait_for_predecessor();
    start_successor();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
    consume<Weights, kTile>(p, ring, e);
  }
}

template <class Weights, int kTile, class Epilogue>
Status launch_wide(const WideParams& p, const Epilogue& e, cudaStream_t stream) {
  using Ring = WideRing<Weights, kTile, kStagingBytes<Weights, kTile, Epilogue>>;
  const auto kernel = wide_kernel<Weights, kTile, Epilogue>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kShared);
  if (prepared != cudaSuccess) return check(prepared, "the product of many tokens");
  const int most =
      (p.x.jobs != nullptr ? p.x.most_jobs : (p.x.tokens + p.x.tile - 1) / p.x.tile) * p.row_tiles;
  return launch(kernel, dim3(min(most, kGrid)), dim3(kWideThreads), Ring::kShared, stream, p, e);
}

template <class Weights, class Epilogue>
Status launch_wide(const WideParams& p, const Epilogue& e, cudaStream_t stream) {
  if (p.x.tile <= 16) return launch_wide<Weights, 16>(p, e, stream);
  if (p.x.tile <= 32) return launch_wide<Weights, 32>(p, e, stream);
  if (p.x.tile <= 64) return launch_wide<Weights, 64>(p, e, stream);
  return launch_wide<Weights, 128>(p, e, stream);
}

}  // namespace moesaic::cuda::sm90a
