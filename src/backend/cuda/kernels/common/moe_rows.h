// Between a caller's tensors and the experts' kernels, for experts without a model around them
// (moe_operator.h): rows, choices and logits of other types come in, results go out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "moesaic/status.h"

namespace moesaic::cuda {

enum class RowType : uint8_t { kF32, kF16, kBF16 };

// Each result that has a target is computed; all of it is a row's, so that one launch does it.
//
// A row whose result would be wrong has a NaN for its factor: a value of x that is not finite or that F16
// does not hold, a weight that is negative or not finite, a logit that is NaN or +infinity. SwiGLU's clamps
// would hide it.
struct TakenRows {
  int rows = 0;
  float* factors = nullptr;  // [rows]: what the row's result is to be multiplied by
  bool has_factors = false;  // an earlier launch has written them: they are multiplied
  int* cleared = nullptr;    // an int that becomes 0
  const void* x = nullptr;   // [rows, hidden], 16-byte aligned
  RowType x_type = RowType::kBF16;
  void* x_out = nullptr;  // [rows, hidden] F16, or BF16
  bool bf16_out = false;
  int hidden = 0;                // a multiple of 32
  const void* logits = nullptr;  // [rows, logit_count]
  RowType logits_type = RowType::kF32;
  float* logits_out = nullptr;
  int logit_count = 0;
  // Choices: ids outside [first_expert, first_expert + experts) are -1 among the local ones, their
  // permuted_rows, too.
  const void* ids = nullptr;  // [rows, top_k] int32, or int64
  bool ids64 = false;
  const float* weights = nullptr;  // [rows, top_k]
  int first_expert = 0, experts = 0, top_k = 0;
  int32_t* local_ids = nullptr;      // [rows, top_k]
  float* local_weights = nullptr;    // [rows, top_k]
  int32_t* permuted_rows = nullptr;  // [rows, top_k]
  // The same as logits of which the largest top_k have the choice's weights as their softmax, for kernels
  // that choose by themselves; the factor is then the weights' sum. An expert that was chosen twice has both
  // weights.
  float* choice_logits = nullptr;  // [rows, experts]
  // kernels/sm90/moe_decode.h needs these, too: its result's rows, zeroed, and its scratch, all 0xFF.
  float* sums = nullptr;   // [rows, hidden]
  uint4* empty = nullptr;  // [rows, empty_vectors]
  int empty_vectors = 0;
};
inline constexpr int kMostTakenTopK = 32;
Status take_rows(const TakenRows& p, cudaStream_t stream);

// out[r] = factors[r] * (sums[r], or sum over k of weights[r, k] * expert_out[permuted_rows[r, k]] in the
// order of k; a permuted row of -1 adds nothing).
struct GivenRows {
  int rows = 0, hidden = 0, top_k = 0;
  const float* factors = nullptr;
  const float* sums = nullptr;  // null: the experts' rows
  const float* expert_out = nullptr;
  const float* weights = nullptr;
  const int32_t* permuted_rows = nullptr;
  void* out = nullptr;  // [rows, hidden], 16-byte aligned
  RowType type = RowType::kBF16;
};
Status give_rows(const GivenRows& p, cudaStream_t stream);

// out[i] = from[i * stride] as F32; `experts` groups of `count`, their first values expert_stride apart.
// from null: zeros.
struct BiasValues {
  const void* from = nullptr;
  RowType type = RowType::kBF16;
  int64_t stride = 1, expert_stride = 0;
  int count = 0, experts = 0;
  float* out = nullptr;  // [experts, count]
  int* fault = nullptr;  // 1 is left here if one is not finite
};
Status take_bias(const BiasValues& p, cudaStream_t stream);

}  // namespace moesaic::cuda
