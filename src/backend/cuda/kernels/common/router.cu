// The router's logits of normed rows. Contract: kernels/common/route.h.
//
// Maths    logits[row, e] = router[e] . x[row] + bias[e] in F32
// Shapes   hidden a multiple of 4
//
// Grid     few rows: a warp 1 expert and row, or 8 experts x 4 rows. Many: a CTA 32 experts x 32 rows
// CTA      many: 8 warps of 8 experts x 16 rows each. Stages of 128 columns of all 64 lines in shared memory,
//          filled ahead by cp.async.
// Barriers many: one a stage. It says that the stage has landed, and that all warps are done with the stage
//          that is filled next.
// Ordering All is read after the wait for the predecessor.
// Order    of a sum: lane l adds the float4 l, l + 32, ..; then warp_sum(). The same in all tiles.
//
// Bytes    weights once per 1, 4 or 32 rows, rows once per 2, 32 or 32 experts, from L2
// Floor    2 rows experts hidden / the rate of F32: 13 us for 4,096 rows of 32 experts on a Hopper GPU, where
//          tiles of 4 rows would read 377 MB of weights from L2.
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/ptx/load.cuh"
#include "backend/cuda/runtime/per_device.h"
#include "backend/cuda/runtime/shared_limits.h"

namespace moesaic::cuda {
namespace {

__device__ const float4* line_of(const float* matrix, int line, int lines, int quads) {
  return reinterpret_cast<const float4*>(matrix) + static_cast<int64_t>(min(line, lines - 1)) * quads;
}
template <int kExperts>
__device__ __forceinline__ void add_products(const float4 (&w)[kExperts], const float4& x,
                                             float (&sum)[kExperts]) {
#pragma unroll
  for (int e = 0; e < kExperts; ++e)
    sum[e] = fmaf(w[e].w, x.w, fmaf(w[e].z, x.z, fmaf(w[e].y, x.y, fmaf(w[e].x, x.x, sum[e]))));
}
__device__ void store_logit(const Router& p, int expert, int row, float sum) {
  if (expert < p.experts && row < p.rows)
    p.logits[static_cast<int64_t>(row) * p.experts + expert] = sum + p.bias[expert];
}

// ---- few rows: straight from L2 ----

template <int kExperts, int kRows>
__global__ void router_kernel(const Router p) {
  const int warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_expert = warp * kExperts, first_row = blockIdx.y * kRows;
  wait_for_predecessor();
  launch_dependents();
  if (first_expert >= p.experts) return;
  const int quads = p.hidden / 4;
  float sum[kRows][kExperts] = {};
  for (int i = lane; i < quads; i += 32) {
    float4 w[kExperts], x[kRows];  // all in flight at once
#pragma unroll
    for (int e = 0; e < kExperts; ++e)
      w[e] = __ldg(line_of(p.weight, first_expert + e, p.experts, quads) + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = line_of(p.x, first_row + r, p.rows, quads)[i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) add_products(w, x[r], sum[r]);
  }
#pragma unroll
  for (int e = 0; e < kExperts; ++e) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float v = warp_sum(sum[r][e]);
      if (lane == 0) store_logit(p, first_expert + e, first_row + r, v);
    }
  }
}

// ---- many rows ----

constexpr int kTileLines = 32, kStageQuads = 32, kStages = 3;  // lines: of experts, and of rows
constexpr int kWarpExperts = 8, kWarpRows = 16, kTileThreads = 256;
constexpr int kStageVectors = 2 * kTileLines * kStageQuads;
static_assert(kTileThreads / 32 == kTileLines / kWarpExperts * (kTileLines / kWarpRows));

// Columns 128 n .. of the tile's experts, then of its rows: [64][32] float4, zeros past the end.
__device__ void fetch_stage(const Router& p, float4* stage, int n) {
  const int quads = p.hidden / 4, column = n * kStageQuads + threadIdx.x % kStageQuads;
#pragma unroll
  for (int i = 0; i < kStageVectors / kTileThreads; ++i) {
    const int vector = i * kTileThreads + threadIdx.x, line = vector / kStageQuads;
    const float4* from = line < kTileLines
                             ? line_of(p.weight, blockIdx.x * kTileLines + line, p.experts, quads)
                             : line_of(p.x, blockIdx.y * kTileLines + line - kTileLines, p.rows, quads);
    cp_async(stage + vector, from + min(column, quads - 1), column < quads);
  }
}

// Lane l gets the sum over all lanes of their values[l], added as warp_sum() does: each step halves both the
// lanes of a sum and the sums of a lane.
template <int kOffset = 16>
__device__ __forceinline__ float own_warp_sum(float (&values)[32]) {
  const bool upper = (threadIdx.x & kOffset) != 0;
#pragma unroll
  for (int i = 0; i < kOffset; ++i) {
    const float kept = upper ? values[i + kOffset] : values[i],
                given = upper ? values[i] : values[i + kOffset];
    values[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, kOffset);
  }
  if constexpr (kOffset > 1) return own_warp_sum<kOffset / 2>(values);
  return values[0];
}

__global__ void __launch_bounds__(kTileThreads, 1) router_tile_kernel(const Router p) {
  extern __shared__ float4 stages[];  // [kStages][kStageVectors]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int expert = warp % 4 * kWarpExperts,
            row = warp / 4 * kWarpRows;  // the warp's first ones in the tile
  const int count = (p.hidden / 4 + kStageQuads - 1) / kStageQuads;
  wait_for_predecessor();
  launch_dependents();
  for (int n = 0; n < kStages - 1; ++n) {
    if (n < count) fetch_stage(p, stages + n * kStageVectors, n);
    cp_async_commit();
  }
  float sum[kWarpRows][kWarpExperts] = {};
  for (int n = 0; n < count; ++n) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    const int next = n + kStages - 1;
    if (next < count) fetch_stage(p, stages + next % kStages * kStageVectors, next);
    cp_async_commit();
    const float4* stage = stages + n % kStages * kStageVectors + lane;
    float4 w[kWarpExperts];
#pragma unroll
    for (int e = 0; e < kWarpExperts; ++e) w[e] = stage[(expert + e) * kStageQuads];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) add_products(w, stage[(kTileLines + row + r) * kStageQuads], sum[r]);
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; r += 4) {  // four rows by eight experts: a value a lane
    float values[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) values[i] = sum[r + i / kWarpExperts][i % kWarpExperts];
    store_logit(p, blockIdx.x * kTileLines + expert + lane % kWarpExperts,
                blockIdx.y * kTileLines + row + r + lane / kWarpExperts, own_warp_sum(values));
  }
}

int line_tiles(int lines) { return (lines + kTileLines - 1) / kTileLines; }

Status router_in_tiles(const Router& p, cudaStream_t stream) {
  constexpr int kShared = kStages * kStageVectors * sizeof(float4);
  static_assert(kShared <= kSmallestShared);
  static OncePerDevice prepared;
  const Status status =
      prepared.run([] { return set_attributes(router_tile_kernel, {.max_shared = kShared}); });
  if (!status.ok()) return status;
  return launch(router_tile_kernel, dim3(line_tiles(p.experts), line_tiles(p.rows)), dim3(kTileThreads),
                kShared, stream, p);
}

}  // namespace

Status router(const Router& p, cudaStream_t stream) {
  constexpr int kFewestCtas = 32;  // below, tiles leave too many multiprocessors idle
  if (p.rows <= 4)
    return launch(router_kernel<1, 1>, dim3((p.experts + 1) / 2, p.rows), dim3(64), 0, stream, p);
  if (line_tiles(p.rows) * line_tiles(p.experts) < kFewestCtas)
    return launch(router_kernel<8, 4>, dim3((p.experts + 31) / 32, (p.rows + 3) / 4), dim3(128), 0, stream,
                  p);
  return router_in_tiles(p, stream);
}

}  // namespace moesaic::cuda
