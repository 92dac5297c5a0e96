// The experts' products y = W x from MXFP4 weights and MXFP8 activations (layout.h), through the atom of
// atom.cuh.
//
// All tiles add in one order: the contraction is cut into kSlices fixed slices of whole quads, a slice is one
// chain of atoms, and the slices are added in order. So a token's result has the same bits whatever the tile
// and the batch.
#pragma once

#include "backend/cuda/sm120a/tokens.h"

namespace moesaic::cuda::sm120a {

inline constexpr int kSlices = 4;

// Units of 32 rows of all experts, [experts][units][unit_bytes(cols / 32)].
struct Weights {
  const uint8_t* data = nullptr;
  int units = 0;  // of one expert
};

// What is compiled; a tile serves jobs of at most so many slots.
enum class Tile {
  k8,
  k16,
  k32,
  k64,
  k128,
  kPrefill,     // 128 tokens, twice the rows
  kCapacity128  // the baseline: 128 tokens are computed whatever their count
};
inline constexpr int tile_tokens(Tile tile) {
  constexpr int kTokens[] = {8, 16, 32, 64, 128, 128, 128};
  return kTokens[static_cast<int>(tile)];
}

// Rows in the order of Rows::kPairs (matrix.h): a = gate sigmoid(alpha gate) (up + 1), gate clamped from
// above, up from both sides, and then one of
//   out   MXFP8 tokens of the second product: slot's token as in the first
//   bf16  [slots, intermediate], to measure a separate quantisation
struct SwiGluMx {
  uint8_t* out = nullptr;
  __nv_bfloat16* bf16 = nullptr;
  int intermediate = 0;
  const float* gate_bias = nullptr;  // [experts, intermediate]
  const float* up_bias = nullptr;
  float alpha = 0, limit = 0;
};
// out[row of the slot] += weight (value + bias) by float atomics, in no fixed order: the baseline that
// zero-fills.
struct AtomicCombine {
  float* out = nullptr;  // [rows, hidden], zeroed
  int hidden = 0, top_k = 0;
  const float* bias = nullptr;         // [experts, hidden]
  const int32_t* slot_rows = nullptr;  // [slots]
  const int32_t* slots = nullptr;      // [rows, top_k]
  const float* weights = nullptr;      // [rows, top_k]
};

Status gemm(const Weights& w, const Tokens& x, Tile tile, const SwiGluMx& out, cudaStream_t stream);
// out[slot, row] = value + bias[expert, row]; out.add is not taken
Status gemm(const Weights& w, const Tokens& x, Tile tile, const Store& out, cudaStream_t stream);
Status gemm(const Weights& w, const Tokens& x, Tile tile, const AtomicCombine& out, cudaStream_t stream);

}  // namespace moesaic::cuda::sm120a
