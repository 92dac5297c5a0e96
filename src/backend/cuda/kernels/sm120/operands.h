// What the kernels of this folder are told: plain structs, the same on host and device.
#pragma once

#include "backend/cuda/ops/operands.h"
#include "backend/cuda/weights/quad_layout.h"

namespace moesaic::cuda::sm120a {

inline constexpr int kSlices = 4;

// MXFP8 or MXFP4 activations, or room for them. Job j's slots are the tokens job.start .. job.start +
// job.count - 1, which begin a group; a group is group_bytes(element, cols / 32) bytes. Tokens beyond count
// may hold anything.
struct Tokens {
  uint8_t* data = nullptr;
  int cols = 0;               // a multiple of 32
  const Job* jobs = nullptr;  // null: one matrix, `count` slots, whose token is the slot
  const int* job_count = nullptr;
  int most_jobs = 0;
  int tile = 8;   // slots of a job, at most
  int count = 0;  // without jobs
  Element element = Element::kE4M3;
};
// Rows in the order of Rows::kPairs (matrix.h): a = gate sigmoid(alpha gate) (up + 1), gate clamped from
// above, up from both sides, and then one of
//   out   tokens of the second product, of the first's element: slot's token as in the first
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

}  // namespace moesaic::cuda::sm120a
