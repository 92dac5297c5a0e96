// y = W x for tiles of 64 or 128 tokens by mma.sync.
//
// Maths    as gemm_small_m.cuh, in the same order of sums. In FP8 (gemm_fp8.h) there are no slices: no other
//          kernel must add alike, and their sums would take 64 registers. A step is 128 columns, in as many
//          bytes.
// Shapes   those of gemm_small_m.cuh. A CTA has 4 weight tiles (128 rows).
//
// Grid     x: 4 weight tiles; y: work tile, or tile of tokens
// CTA      8 warps, 4 x 2: a warp has one weight tile and half of the tokens. Its weights go straight into
//          registers, one step of 64 columns ahead. All threads copy x into shared memory by cp.async, two
//          steps ahead. A stage's row (128 bytes, one token) has 8 chunks of 16 bytes; odd tokens swap the
//          halves of theirs, so that the 8 lanes of a load phase (two tokens, four chunks) touch all banks.
//
// Barriers one __syncthreads() a step, behind the wait for the thread's own copies: the step's stage is
//          complete, and the stage that is filled next has been read by all.
// Ordering Everything but parameters is read after the wait for the predecessor.
// Resident No CTA waits for another.
//
// Bytes    weights once per tile of tokens, x once per 128 rows, from L2. Shared memory: 3 stages x tokens
//          x 64 columns, 24 or 48 KB.
// Floor    max(bytes / bandwidth, 2 rows cols tokens / rate of mma.sync).
#pragma once

#include "backend/cuda/kernels/common/gemm_tile.cuh"

namespace moesaic::cuda {

inline constexpr int kLargeMWeightTiles = 4, kLargeMWarps = 8, kLargeMStages = 3;
inline constexpr int kLargeMStep = 2 * kBlock;  // columns of a step

// The tile's activations of one step at a time.
template <int kTokens>
struct ActivationStages {
  static constexpr int kCopies = kTokens / 32;  // a thread's: chunk threadIdx.x % 8 of every 32nd token
  const uint16_t* row[kCopies];                 // null: no such token
  uint16_t* shared;
  int cols;

  __device__ ActivationStages(const GemmParams& p, const WorkTile& work_tile, uint16_t* stages)
      : shared(stages), cols(p.cols) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int token = threadIdx.x / 8 + 32 * i, permuted_row = work_tile.first + token;
      row[i] =
          token < work_tile.count
              ? p.x + static_cast<int64_t>(p.rows != nullptr ? p.rows[permuted_row] : permuted_row) * p.cols
              : nullptr;
    }
  }
  __device__ static int chunk_at(int token, int chunk) { return token * 8 + (chunk ^ (token & 1) << 2); }

  // Every thread closes one group a step, so that waiting counts steps.
  __device__ void fetch(int step) const {
    const int chunk = threadIdx.x % 8, column = step * kLargeMStep + chunk * 8;
    uint16_t* stage = shared + step % kLargeMStages * kTokens * kLargeMStep;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int token = threadIdx.x / 8 + 32 * i;
      const bool valid = row[i] != nullptr && column < cols;
      cp_async(stage + chunk_at(token, chunk) * 8,
               valid ? row[i] + column : reinterpret_cast<const uint16_t*>(shared), valid);
    }
  }

  // Columns 8 c .. 8 c + 7 of block `half` of the step, of token g of each tile from `first` on.
  template <int kTiles>
  __device__ void read(int step, int half, int first, int g, int c, uint4 (&x)[kTiles]) const {
    const uint16_t* stage = shared + step % kLargeMStages * kTokens * kLargeMStep;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      x[t] = *reinterpret_cast<const uint4*>(stage + chunk_at(first + 8 * t + g, 4 * half + c) * 8);
  }
};

template <class Source, int kTokens, class Epilogue>
__global__ void __launch_bounds__(kLargeMWarps * 32)
    gemm_large_m_kernel(const GemmParams p, const Epilogue epilogue) {
  extern __shared__ __align__(128) uint16_t stages[];
  constexpr int kTiles = kTokens / 16;  // tiles of a warp
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int weight_tile = blockIdx.x * kLargeMWeightTiles + warp / 2, first_token = warp % 2 * (kTokens / 2);
  wait_for_predecessor();
  launch_dependents();
  WorkTile work_tile{0, static_cast<int>(blockIdx.y) * kTokens, 0, 0};
  if (p.work_tiles != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.work_tile_count) return;
    work_tile = p.work_tiles[blockIdx.y];
  } else {
    work_tile.count = min(kTokens, p.tokens - work_tile.first);
  }
  const ActivationStages<kTokens> act(p, work_tile, stages);
  const int steps = (p.blocks + 1) / 2;
#pragma unroll
  for (int s = 0; s < kLargeMStages - 1; ++s) {
    if (s < steps) act.fetch(s);
    cp_async_commit();
  }

  // A warp without a weight tile or tokens still helps to fetch.
  const bool works = weight_tile < p.weight_tiles && first_token < work_tile.count;
  const int64_t index =
      (static_cast<int64_t>(work_tile.expert) * p.weight_tiles + min(weight_tile, p.weight_tiles - 1)) *
      p.blocks;
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
        while (!Source::kFp8 && block >= end && slices <= kSlices) {
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
    cp_async_wait<kLargeMStages - 2>();
    __syncthreads();
    if (step + kLargeMStages - 1 < steps) act.fetch(step + kLargeMStages - 1);
    cp_async_commit();
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
  const auto& sums = Source::kFp8 ? slice.v : total;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = first_token + 8 * t + 2 * c + e;
        if (token < work_tile.count)
          finish(epilogue, weight_tile, 8 * m + g, work_tile.first + token, work_tile.expert,
                 sums[m][t][e] * p.factor, sums[m][t][2 + e] * p.factor);
      }
    }
  }
}

template <class Source, int kTokens, class Epilogue>
Status launch_large_m(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr size_t kShared = kLargeMStages * kTokens * kLargeMStep * sizeof(uint16_t);
  static_assert(kShared == gemm_shared_bytes(kTokens) && kShared <= 48 * 1024);
  const auto weight_tiles =
      static_cast<unsigned>((w.weight_tiles + kLargeMWeightTiles - 1) / kLargeMWeightTiles);
  return launch(gemm_large_m_kernel<Source, kTokens, Epilogue>, dim3(weight_tiles, token_blocks(x, kTokens)),
                dim3(kLargeMWarps * 32), kShared, stream, params_of<Source>(w, x), epilogue);
}

}  // namespace moesaic::cuda
