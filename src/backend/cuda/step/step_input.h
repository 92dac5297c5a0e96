// The inputs that one step's kernels read besides weights and activations: a packed array of int32 that is
// copied to the device in one piece. Where each part stands follows from the step's shape alone, so that a
// captured graph can be replayed for every step of that shape.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/kernels/common/draft.h"
#include "core/batch.h"

namespace moesaic::cuda {

struct StepShape {
  int rows = 0, sequences = 0, logit_rows = 0;
  int decode_tiles = 0, prefill_tiles = 0;
  bool samples = false;  // the tokens of the logit rows are sampled on the device
  int kv_splits = 0;     // for the longest context among the decoding rows, rounded up to a power of two
  // NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const StepShape&) const = default;
};

// Offsets in int32.
struct StepLayout {
  int tokens, positions, full_slots, window_slots, logit_rows;
  int token_sources;  // [rows]: Batch::token_sources
  int sampling;       // [logit_rows] DeviceSampling
  int result_buffer;  // which of StepIo's two the results go to
  int epoch;          // the first exchange's between ranks
  int decode_tiles, prefill_tiles;
  int pages;  // page tables, one behind the other: the rest of the array
};
StepLayout layout_of(const StepShape& shape);

// How rows are attended to: where a sequence has at most most_decode_rows, as it does when it decodes or a
// draft is verified, one by one by the kernel for decoding; else in tiles of `tokens` rows.
struct Tiling {
  int tokens;
  int most_decode_rows;
};
StepShape shape_of(const Batch& batch, const Tiling& tiling);
// Where a sequence's part of the array is. Offsets in int32.
struct PackedSequence {
  int full_table = -1, window_table = -1;  // behind StepLayout::pages; -1: it has none
  int tiles = 0, tile_count = 0;
};
// Fills the array. The batch must be valid.
std::vector<PackedSequence> pack(const Batch& batch, const StepShape& shape, const Tiling& tiling,
                                 std::vector<int32_t>& out);
// These follow the page tables of a batch with continuations.
struct PackedContinuations {
  int sequences = 0, count = 0;  // offset of ContinuedSequence [count] (kernels/common/draft.h)
  int moved = 0;                 // offset: [sequences of the batch]
};
// first_wanted: of each sequence of the step before, its first logit row.
PackedContinuations pack_continuations(const Batch& batch, std::span<const PackedSequence> sequences,
                                       std::span<const int> first_wanted, std::vector<int32_t>& out);
// The part of these inputs that move_on() takes; the step before's results are missing.
MoveOn move_on_inputs(const StepLayout& at, const PackedContinuations& continuations, int32_t* inputs);

}  // namespace moesaic::cuda
