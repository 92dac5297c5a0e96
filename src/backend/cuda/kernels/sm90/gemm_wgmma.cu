#include "backend/cuda/kernels/sm90/gemm_wgmma.cuh"

namespace moesaic::cuda::sm90 {
namespace {

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
// are bytes, or that of its products, as long as reading 7/4 of its tokens; joining a cluster's sums takes as
// long as 4, and 1 for each 48 tokens of each CTA. The last wave of CTAs is rarely full.
ActivationTiles dense_tiles(const Matrix& w, const SlabLayout& layout, void* data, int tokens) {
  struct Cut {
    int tile, split;
  };
  const int weights = w.weight_tile_bytes() == w.cols * kWeightTileRows ? 50 : 100;
  const int rows = dense_params(w, {}, 1.0f).row_tiles, stages = static_cast<int>(w.cols / kWgmmaStep);
  const auto time = [&](const Cut& cut) {
    const int ctas = (tokens + cut.tile - 1) / cut.tile * rows * cut.split;
    const int tile = std::max(weights + cut.tile, cut.tile * 7 / 4);
    return (ctas + layout.sms - 1) / layout.sms * tile / cut.split +
           (cut.split > 1 ? 4 + cut.tile * cut.split / 48 : 0);
  };
  Cut best{128, 1};
  for (const int tile : {192, 160, 128, 112, 96, 64, 32}) {
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

Status wgmma_experts(const uint8_t* fc1, const ActivationTiles& x, float factor, const WgmmaSwiGlu& out,
                     cudaStream_t stream) {
  const int rows = 2 * out.columns;
  if (x.fp8)
    return launch_wgmma<Fp8SlabWeights<false>>(slab_params(fc1, x, rows, factor / kFp8Scale), out, stream);
  return launch_wgmma<SlabWeights<false>>(slab_params(fc1, x, rows, factor), out, stream);
}
Status wgmma_experts(const uint8_t* fc2, const ActivationTiles& x, float factor, const Store& out,
                     cudaStream_t stream) {
  if (x.fp8)
    return launch_wgmma<Fp8SlabWeights<true>>(slab_params(fc2, x, out.rows, factor / kFp8Scale), out, stream);
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
