// The matrix product for many tokens: one thread block computes four units (128 rows) for a tile of 64 or 128
// tokens. Warps stand 4 by 2: a warp has one unit and half of the tokens. Weights go straight into registers,
// one step ahead; activations go through shared memory, three steps deep.
//
//   grid: (units / 4, jobs); shared memory: 3 stages x tokens x 64 columns
//   A stage's row (128 bytes) holds 8 chunks of 16 bytes; odd tokens swap the halves of theirs, so that the 8
//   lanes of a load phase (two tokens, four chunks) touch all banks.
#pragma once

#include "backend/cuda/kernels/common/gemm_tile.cuh"

namespace moesaic::cuda {

inline constexpr int kManyUnits = 4, kManyWarps = 8, kManyStages = 3;
inline constexpr int kManyStep = 2 * kBlock;  // columns of a step

__device__ inline void cp_async(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

// The tile's activations of one step at a time.
template <int kTokens>
struct ActivationStages {
  static constexpr int kCopies = kTokens / 32;  // a thread's: chunk threadIdx.x % 8 of every 32nd token
  const uint16_t* row[kCopies];                 // null: no such token
  uint16_t* shared;
  int cols;

  __device__ ActivationStages(const GemmParams& p, const Job& job, uint16_t* stages)
      : shared(stages), cols(p.cols) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int token = threadIdx.x / 8 + 32 * i, slot = job.first + token;
      row[i] = token < job.count
                   ? p.x + static_cast<int64_t>(p.rows != nullptr ? p.rows[slot] : slot) * p.cols
                   : nullptr;
    }
  }
  __device__ static int chunk_at(int token, int chunk) { return token * 8 + (chunk ^ (token & 1) << 2); }

  // Every thread closes one group a step, so that waiting counts steps.
  __device__ void fetch(int step) const {
    const int chunk = threadIdx.x % 8, column = step * kManyStep + chunk * 8;
    uint16_t* stage = shared + step % kManyStages * kTokens * kManyStep;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int token = threadIdx.x / 8 + 32 * i;
      const bool valid = row[i] != nullptr && column < cols;
      cp_async(stage + chunk_at(token, chunk) * 8,
               valid ? row[i] + column : reinterpret_cast<const uint16_t*>(shared), valid);
    }
  }
  __device__ static void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  __device__ static void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(kManyStages - 2) : "memory"); }

  // Columns 8 c .. 8 c + 7 of block `half` of the step, of token g of each tile from `first` on.
  template <int kTiles>
  __device__ void read(int step, int half, int first, int g, int c, uint4 (&x)[kTiles]) const {
    const uint16_t* stage = shared + step % kManyStages * kTokens * kManyStep;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      x[t] = *reinterpret_cast<const uint4*>(stage + chunk_at(first + 8 * t + g, 4 * half + c) * 8);
  }
};

template <class Source, int kTokens, class Epilogue>
__global__ void __launch_bounds__(kManyWarps * 32) many_kernel(const GemmParams p, const Epilogue epilogue) {
  extern __shared__ __align__(128) uint16_t stages[];
  constexpr int kTiles = kTokens / 16;  // of a warp
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int unit = blockIdx.x * kManyUnits + warp / 2, first_token = warp % 2 * (kTokens / 2);
  wait_for_predecessor();
  launch_dependents();
  Job job{0, static_cast<int>(blockIdx.y) * kTokens, 0, 0};
  if (p.jobs != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.job_count) return;
    job = p.jobs[blockIdx.y];
  } else {
    job.count = min(kTokens, p.tokens - job.first);
  }
  const ActivationStages<kTokens> act(p, job, stages);
  const int steps = (p.blocks + 1) / 2;
#pragma unroll
  for (int s = 0; s < kManyStages - 1; ++s) {
    if (s < steps) act.fetch(s);
    act.commit();
  }

  // A warp without a unit or tokens still helps to fetch.
  const bool works = unit < p.units && first_token < job.count;
  const int64_t index = (static_cast<int64_t>(job.expert) * p.units + min(unit, p.units - 1)) * p.blocks;
  const uint8_t* data = p.data + index * Source::kBlockBytes;
  const uint8_t* scales = p.scales + index * Source::kScaleBytes;
  Source current[2], next[2];
  const auto load = [&](Source(&w)[2], int step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t b = min(2 * step + i, p.blocks - 1);
      w[i].load(data + b * Source::kBlockBytes, scales + b * Source::kScaleBytes, lane);
    }
  };
  load(current, 0);
  Sums<Source, kTiles> slice;
  float total[2][kTiles][4] = {};
  int slices = 1, end = slice_start(p.blocks, 1);
  const auto close_slices =
      [&](int block) {  // those that end before this block; short contractions have empty ones
        while (block >= end && slices <= kSlices) {
#pragma unroll
          for (int i = 0; i < 2 * kTiles * 4; ++i) {
            float& sum = (&slice.v[0][0][0])[i];
            (&total[0][0][0])[i] += sum;
            sum = 0;
          }
          end = slice_start(p.blocks, ++slices);
        }
      };
  for (int step = 0; step < steps; ++step) {
    act.wait();
    __syncthreads();
    if (step + kManyStages - 1 < steps) act.fetch(step + kManyStages - 1);
    act.commit();
    if (!works) continue;
    if (step + 1 < steps) load(next, step + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int block = 2 * step + half;
      if (block >= p.blocks) break;
      close_slices(block);
      uint4 x[kTiles];
      act.read(step, half, first_token, g, c, x);
      slice.add(current[half], x);
    }
    current[0] = next[0], current[1] = next[1];
  }
  if (!works) return;
  close_slices(p.blocks);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = first_token + 8 * t + 2 * c + e;
        if (token < job.count)
          finish(epilogue, unit, 8 * m + g, job.first + token, job.expert, total[m][t][e] * p.factor,
                 total[m][t][2 + e] * p.factor);
      }
    }
  }
}

}  // namespace moesaic::cuda
