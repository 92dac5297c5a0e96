#include "backend/cuda/kernels/sm90/gemm_wgmma.cuh"

namespace moesaic::cuda::sm90 {
namespace {

// A warp a token, or 32 blocks of it: lane (block, q) has chunk q of the block, for wgmma from four places 16
// bytes apart.
constexpr int kArrangeWarps = 8, kAhead = 4;  // kAhead: blocks that a lane loads before the first is stored
__global__ void __launch_bounds__(kArrangeWarps * 32)
    arrange_kernel(const uint32_t* x, const int32_t* rows, const ActivationTiles tiles) {
  wait_for_predecessor();
  launch_dependents();
  if (static_cast<int>(blockIdx.y) >= work_tile_count_of(tiles)) return;
  const WorkTile work_tile = work_tile_at(tiles, blockIdx.y);
  const int token = blockIdx.x * kArrangeWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= work_tile.count) return;
  const int permuted_row = work_tile.first + token, width = width_of(tiles, work_tile), q = lane % 4;
  const uint32_t* from =
      x + static_cast<int64_t>(rows != nullptr ? rows[permuted_row] : permuted_row) * (tiles.cols / 2);
  uint8_t* to = static_cast<uint8_t*>(tiles.data) + static_cast<int64_t>(work_tile.start) * tiles.cols * 2 +
                token * 128;
  const int blocks = tiles.cols / kBlock;
  for (int first = blockIdx.z * (8 * kAhead) + lane / 4; first < blocks; first += gridDim.z * (8 * kAhead)) {
    uint4 chunk[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t* at = from + min(first + 8 * i, blocks - 1) * (kBlock / 2);
      chunk[i] = {at[q], at[q + 4], at[q + 8], at[q + 12]};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int block = first + 8 * i, place = chunk_place(block % 2 * 4 + q, token);
      if (block < blocks)
        *reinterpret_cast<uint4*>(to + static_cast<int64_t>(block / 2) * width * 128 + place * 16) = chunk[i];
    }
  }
}

WgmmaParams slab_params(const uint8_t* weights, const ActivationTiles& x, int rows, float factor) {
  return {.weights = weights,
          .x = x,
          .row_tiles = (rows + kTileRows - 1) / kTileRows,
          .weight_tiles = rows / kWeightTileRows,
          .stages = kBlocks / kBlocksPerWarp,
          .split = 1,
          .factor = factor};
}

WgmmaParams dense_params(const Matrix& w, const ActivationTiles& x, float factor) {
  const int weight_tiles = static_cast<int>(w.weight_tiles), per_tile = kTileRows / kWeightTileRows;
  return {.weights = w.data.as<uint8_t>(),
          .scales = w.scales.as<uint8_t>(),
          .tops = w.tops.as<uint8_t>(),
          .x = x,
          .row_tiles = (weight_tiles + per_tile - 1) / per_tile,
          .weight_tiles = weight_tiles,
          .stages = static_cast<int>(w.cols / kWgmmaStep),
          .split = x.split,
          .factor = factor,
          .tokens_first = x.tokens < w.rows};
}

template <class Epilogue>
Status dense(const Matrix& w, const ActivationTiles& x, float factor, const Epilogue& out,
             cudaStream_t stream) {
  const WgmmaParams p = dense_params(w, x, factor);
  switch (w.kind) {
    case Kind::kBF16:
      return launch_wgmma<PlainWeights<true>>(p, out, stream);
    case Kind::kF16:
      return launch_wgmma<PlainWeights<false>>(p, out, stream);
    case Kind::kQ8_0:
      return launch_wgmma<ByteWeights<Q8Codes>>(p, out, stream);
    case Kind::kMxfp8:
      return launch_wgmma<ByteWeights<Mxfp8Codes>>(p, out, stream);
    default:
      return no_kernel("gemm_wgmma", w, x.tokens);
  }
}

}  // namespace

// The time of a CTA is that of reading its operands from L2, in which weights count as 100 tokens, 50 if they
// are bytes; joining a cluster's sums takes as long as 20. The last wave of CTAs is rarely full.
ActivationTiles dense_tiles(const Matrix& w, const SlabLayout& layout, void* data, int tokens) {
  struct Cut {
    int tile, split;
  };
  const int weights = w.weight_tile_bytes() == w.cols * kWeightTileRows ? 50 : 100;
  const int rows = dense_params(w, {}, 1.0f).row_tiles, stages = static_cast<int>(w.cols / kWgmmaStep);
  const auto time = [&](const Cut& cut) {
    const int ctas = (tokens + cut.tile - 1) / cut.tile * rows * cut.split;
    return (ctas + layout.sms - 1) / layout.sms * (weights + cut.tile) / cut.split + (cut.split > 1 ? 20 : 0);
  };
  Cut best{128, 1};
  for (const int tile : {192, 160, 128, 112, 64, 32}) {
    for (int split = 1; split <= kMostSplit; split *= 2) {
      const bool one_wave = (tokens + tile - 1) / tile * rows * split <= layout.sms;
      if (split > 1 && (!one_wave || stages < 4 * split)) break;
      if (time({tile, split}) < time(best)) best = {tile, split};
    }
  }
  return {.data = data,
          .cols = static_cast<int>(w.cols),
          .tokens = tokens,
          .tile = best.tile,
          .split = best.split,
          .layout = layout};
}

Status arrange(const void* x, const int32_t* rows, const ActivationTiles& tiles, cudaStream_t stream) {
  const int work_tiles =
      tiles.work_tiles != nullptr ? tiles.most_work_tiles : (tiles.tokens + tiles.tile - 1) / tiles.tile;
  // Experts have many work tiles, most of them empty.
  const int parts = tiles.work_tiles != nullptr ? 1 : (tiles.cols / kBlock + 8 * kAhead - 1) / (8 * kAhead);
  return launch(arrange_kernel, dim3((tiles.tile + kArrangeWarps - 1) / kArrangeWarps, work_tiles, parts),
                dim3(kArrangeWarps * 32), 0, stream, static_cast<const uint32_t*>(x), rows, tiles);
}

Status wgmma_experts(const uint8_t* fc1, const ActivationTiles& x, float factor, const WgmmaSwiGlu& out,
                     cudaStream_t stream) {
  return launch_wgmma<SlabWeights<false>>(slab_params(fc1, x, 2 * out.columns, factor), out, stream);
}
Status wgmma_experts(const uint8_t* fc2, const ActivationTiles& x, float factor, const Store& out,
                     cudaStream_t stream) {
  return launch_wgmma<SlabWeights<true>>(slab_params(fc2, x, out.rows, factor), out, stream);
}

Status wgmma_dense(const Matrix& w, const ActivationTiles& x, float factor, const Store& out,
                   cudaStream_t stream) {
  return dense(w, x, factor, out, stream);
}
Status wgmma_dense(const Matrix& w, const ActivationTiles& x, float factor, const Qkv& out,
                   cudaStream_t stream) {
  return dense(w, x, factor, out, stream);
}

}  // namespace moesaic::cuda::sm90
