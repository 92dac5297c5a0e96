// What one step's kernels read besides weights and activations: a packed array of int32 that is copied to the
// device in one piece. Where each part stands follows from the step's shape alone, so that a captured graph
// can be replayed for every step of that shape.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "backend/cuda/ops/attention.h"
#include "core/batch.h"

namespace moesaic::cuda {

struct StepShape {
  int rows = 0, sequences = 0, logit_rows = 0;
  int decode_tiles = 0, prefill_tiles = 0;
  bool draws = false;  // the tokens of the logit rows are drawn
  int shares = 0;      // of the longest context among the decoding rows, a power of two
  auto operator<=>(const StepShape&) const = default;
};

// Offsets in int32.
struct StepLayout {
  int tokens, positions, full_slots, window_slots, logit_rows;
  int sources;  // [rows]: which of the tokens that the step before drew, -1: the one in tokens
  int draws;    // [logit_rows] Draw
  int turn;     // the exchange's
  int decode_tiles, prefill_tiles;
  int pages;  // page tables, one behind the other: the rest of the array
};
StepLayout layout_of(const StepShape& shape);

// How rows are attended to: single rows by the kernel for decoding, others in tiles of so many.
struct Tiling {
  int tokens;
  bool decodes;
};
StepShape shape_of(const Batch& batch, const Tiling& tiling);
// Fills the array. The batch must be valid.
void pack(const Batch& batch, const StepShape& shape, const Tiling& tiling, std::vector<int32_t>& out);

}  // namespace moesaic::cuda
