// Panel pairs times tokens by AMX tiles; Tiles is HardwareTiles or EmulatedTiles.
//
// A tile of activations (16 tokens) times a tile of weights (a panel of 16 rows) gives a tile of results,
// lane l of row t being token t's product with row l of the panel. No tile reads beyond the activations.
#pragma once

#include <utility>

#include "backend/cpu/amx.h"
#include "backend/cpu/kernels_amx_bf16.h"
#include "backend/cpu/kernels_amx_int8.h"

namespace moesaic::cpu {

extern const Kernels kKernels_avx512;

namespace {

template <typename Tiles>
void gemm_by_tiles(const PairTask& task) {
  if (task.format == Format::kBF16) return bf16_by_tiles<Tiles, PackedSteps>(task);
  const int from = task.tuning.expand_tokens > 0 ? task.tuning.expand_tokens : kAmxExpandTokens;
  if (task.tokens >= from) {
    if (task.act.format == Act::kBlockFloat) return bf16_by_tiles<Tiles, WidenedSteps>(task);
    if (task.format == Format::kQ8_0) return int_by_tiles<Tiles>(task);
  }
  PairTask by_vectors = task;
  by_vectors.tuning.expand_tokens = 0;
  kKernels_avx512.gemm(by_vectors);
}

// Kernels::multiply.
template <typename Tiles>
int64_t multiply_tiles(int64_t rounds) {
  Tiles tiles(bf16_config(kTileRows));
  const auto zero = [&tiles]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (tiles.template zero<kTile>(), ...);
  };
  zero(std::make_integer_sequence<int, kBf16B + 2>());
  for (int64_t i = 0; i < rounds; ++i) {
    tiles.template dot_bf16<kBf16C, kBf16A, kBf16B>();
    tiles.template dot_bf16<kBf16C + 1, kBf16A, kBf16B + 1>();
    tiles.template dot_bf16<kBf16C + 2, kBf16A + 1, kBf16B>();
    tiles.template dot_bf16<kBf16C + 3, kBf16A + 1, kBf16B + 1>();
  }
  return rounds * 4 * 2 * kTileRows * kTileRows * kBf16Columns;
}

}  // namespace
}  // namespace moesaic::cpu
