// Packs a step's inputs on the device, from a serving engine's tensors (backend/step_operator.h). pack() of
// step/step_input.h does the same on the host.
#pragma once

#include <cstddef>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/runtime/device.h"
#include "backend/step_operator.h"

namespace moesaic::cuda {

// The caller's cache of a layer. K of a page stands at its beginning, V behind it.
struct GivenCache {
  std::byte* base;
  bool sliding;  // its pages are those of the sliding layers
};

// Offsets in int32 into the inputs are those of StepLayout.
struct PackStep {
  StepOperatorCall call;  // its rows [first_row, first_row + rows) are the step
  int first_row = 0, rows = 0;
  int vocab = 0;
  int pages = 0;        // pages of the cache
  int pitch = 1;        // pages of our kernels from one page of the caller's to the next
  int table_pages = 0;  // entries of each page table that is written
  int most_decode_rows = 0, tile_tokens = 0;
  bool only_decodes = false;  // no sequence has more rows: row r's tile is tile r
  int32_t* inputs = nullptr;
  int tokens = 0, positions = 0, slots[2] = {}, decode_tiles = 0, prefill_tiles = 0, tables = 0;
  // A row that is not finite leaves such values in its pages. Whoever owns one of them next gives those
  // places a weight of zero, and zero times NaN is NaN. So once an earlier step has left a fault above 0,
  // pages are cleared as their first place is written.
  const int* fault = nullptr;    // the word that the steps leave
  const int* spoiled = nullptr;  // is not 0 once the host has taken such a fault
  const GivenCache* caches = nullptr;
  int layers = 0, half_bytes = 0;  // half_bytes: K of a page, and V of it; a multiple of 16
};
// Kernels that follow may read the inputs at once.
Status pack_step(const PackStep& p, cudaStream_t stream);

// out[i] = factor * x[i] in F16, of BF16 values.
Status to_half(const void* x, int64_t count, float factor, void* out, cudaStream_t stream);

}  // namespace moesaic::cuda
