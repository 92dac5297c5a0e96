// Panel pairs times tokens by AMX tiles; Tiles is HardwareTiles or EmulatedTiles.
//
// A tile of activations (16 tokens) times a tile of weights (a panel of 16 rows) gives a tile of results,
// lane l of row t being token t's product with row l of the panel. No tile reads beyond the activations.
#pragma once

#include "backend/cpu/amx.h"
#include "backend/cpu/kernels_amx_bf16.h"
#include "backend/cpu/kernels_amx_int8.h"

namespace moesaic::cpu {

extern const Kernels kKernels_avx512;

namespace {

// Mxfp4Source for block floating point: a unit that is not a number makes none of the sum, which adding to
// its exponent would not.
template <Prefetch kHint>
struct BlockFloatSource : Mxfp4Source<kHint> {
  using Plain = BlockFloatSource<Prefetch::kNone>;
  using Scale = F16;
  F16 scale(int p, int64_t b) const {
    return as_float((widen_bytes(this->task.scales + (b * kPair + p) * kPanel) - 1) << 23);
  }
  static F16 factor(F16 scale, const float* unit) { return scale * splat(*unit); }
};

// MXFP4 times block floating point by vectors, the tiles' numbers bit for bit: a block's sum is exact, and
// only the addition of blocks rounds, block by block here as there.
template <Prefetch kHint>
void block_float_tiles(const PairTask& task) {
  constexpr int kParts = 2;
  int_tiles<kParts>(BlockFloatSource<kHint>{task});
}
inline void block_float_by_vectors(const PairTask& task) {
  switch (task.tuning.prefetch) {
    case Prefetch::kNone:
      return block_float_tiles<Prefetch::kNone>(task);
    case Prefetch::kT1:
      return block_float_tiles<Prefetch::kT1>(task);
    case Prefetch::kNta:
      // More tokens than one tile has read the weights again, so they are to stay in L2.
      if (task.tokens <= kIntTokens / 2) return block_float_tiles<Prefetch::kNta>(task);
      [[fallthrough]];
    case Prefetch::kT0:
      return block_float_tiles<Prefetch::kT0>(task);
  }
}

template <typename Tiles>
void gemm_by_tiles(const PairTask& task) {
  if (task.pack == Pack::kBF16) return bf16_by_tiles<Tiles, PackedSteps>(task);
  const int from = task.tuning.expand_tokens > 0 ? task.tuning.expand_tokens : kAmxExpandTokens;
  const bool many = task.tokens >= from;
  if (task.act.format == Act::kBlockFloat)
    return many ? bf16_by_tiles<Tiles, WidenedSteps>(task) : block_float_by_vectors(task);
  if (many && task.pack == Pack::kInt8) return int_by_tiles<Tiles>(task);
  PairTask by_vectors = task;
  by_vectors.tuning.expand_tokens = 0;
  kKernels_avx512.gemm(by_vectors);
}

}  // namespace
}  // namespace moesaic::cpu
