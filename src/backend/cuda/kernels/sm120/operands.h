// What the kernels of this folder are told: plain structs, the same on host and device.
#pragma once

#include "backend/cuda/ops/operands.h"
#include "backend/cuda/weights/quad_layout.h"

namespace moesaic::cuda::sm120a {

inline constexpr int kSlices = 4;

// MXFP8 activations, or room for them. Job j's slots are the tokens job.start .. job.start +
// job.count - 1, which begin a group; a group is group_bytes(cols / 32) bytes. Tokens beyond count
// may hold anything.
struct Tokens {
  uint8_t* data = nullptr;
  int cols = 0;               // a multiple of 32
  const Job* jobs = nullptr;  // null: one matrix, `count` slots, whose token is the slot
  const int* job_count = nullptr;
  int most_jobs = 0;
  int tile = 8;   // slots of a job, at most
  int count = 0;  // without jobs
};
// Rows in the order of Rows::kPairs (matrix.h): a = gate sigmoid(alpha gate) (up + 1), gate clamped from
// above, up from both sides, as tokens of the second product: a slot's token as in the first.
struct SwiGluMx {
  uint8_t* out = nullptr;
  int intermediate = 0;
  const float* gate_bias = nullptr;  // [experts, intermediate]
  const float* up_bias = nullptr;
  float alpha = 0, limit = 0;
};

}  // namespace moesaic::cuda::sm120a
