// A mixture of experts with MXFP4 weights on a caller's own tensors: the kernels that a model's steps use,
// without the model. moesaic_ops.h is its C interface, moesaic.ops its Python one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

enum class ElementType { kF32, kF16, kBF16 };

struct MoeOperatorOptions {
  int device = 0;
  int experts = 0;         // experts whose weights are given
  int first_expert = 0;    // the id of the first; ids of others are skipped
  int routed_experts = 0;  // experts that the router scores; 0: first_expert + experts
  int top_k = 4;
  int hidden = 0, intermediate = 0;  // multiples of 32
  // gate sigmoid(alpha gate) (up + offset), gate clamped to at most limit, up to +-limit; limit 0: no clamps.
  float alpha = 1.702f, limit = 7, offset = 1;
  bool interleaved = true;  // rows of the first product: gate, up, gate, up, ..; else all gates, then all ups
  bool warm_up = true;      // runs every kernel once, so that nothing is loaded while a stream is captured
};

// The weights of all experts, in the device's memory. A block is 32 columns of a row: 16 bytes of two E2M1
// codes each, the first in the low half, and an E8M0 scale. Strides in bytes of blocks and scales, in values
// of the bias.
struct MoeOperatorMatrix {
  const void* blocks = nullptr;  // [experts, rows, cols / 32, 16]
  const void* scales = nullptr;  // [experts, rows, cols / 32]
  const void* bias = nullptr;    // [experts, rows]; null: none
  ElementType bias_type = ElementType::kBF16;
  int64_t block_expert_stride = 0, block_row_stride = 0;
  int64_t scale_expert_stride = 0, scale_row_stride = 0;
  int64_t bias_expert_stride = 0;
};

// All pointers are of the device. Either ids and weights, or logits.
struct MoeOperatorCall {
  int64_t tokens = 0;                     // any number
  ElementType type = ElementType::kBF16;  // type of x and out: F16 or BF16
  const void* x = nullptr;                // [tokens, hidden], contiguous, 16-byte aligned
  void* out = nullptr;                    // the same; apart from all that is read
  const void* ids = nullptr;              // [tokens, top_k] int32 or int64
  bool ids64 = false;
  const float* weights = nullptr;  // [tokens, top_k]
  const void* logits = nullptr;    // [tokens, routed_experts]: the top_k largest, and their softmax
  ElementType logits_type = ElementType::kF32;
  // It has at least workspace_bytes(tokens) bytes, is 256-byte aligned and is used by one stream at a time.
  // Null: the operators share the library's own. It has one for each device and stream, kept while an
  // operator lives. A stream that is being captured has one for its graph, kept while the graph or its
  // executables live. The first call of a size allocates.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  void* stream = nullptr;  // a cudaStream_t of the device
};

// out[t] = sum over k of weight[t, k] * expert ids[t, k] of x[t]. A row of NaN is the answer to a value of x
// that is not finite or beyond F16's 65,504 (where the kernels compute in F16), to a weight that is negative
// or not finite, and to a logit that is NaN or +infinity.
class MoeOperator {
 public:
  virtual ~MoeOperator() = default;
  virtual const MoeOperatorOptions& options() const = 0;
  // Does not grow beyond some thousand tokens: more are computed in pieces.
  virtual size_t workspace_bytes(int64_t tokens) const = 0;
  // Bytes of the weights, on the device.
  virtual size_t bytes() const = 0;
  // The kernels for so many tokens, for people: "slabs, split-k 16".
  virtual std::string plan(int64_t tokens) const = 0;
  // Launches and returns; allocates nothing and waits for nothing, so that it can be captured. kInternal,
  // once: a kernel of an earlier call waited for 9 s or more for CTAs of its own that the device did not run;
  // that call's rows are not valid.
  virtual Status run(const MoeOperatorCall& call) const = 0;
};

// Repacks the experts to memory of its own; the given matrices may be freed when it returns. Waits for the
// stream, so it cannot be captured. Errors: sizes that no kernel takes, a device that is absent or that the
// program has no code for, host memory, a NaN scale, a bias that is not finite, lack of memory.
Result<std::unique_ptr<MoeOperator>> prepare_moe(const MoeOperatorOptions& options,
                                                 const MoeOperatorMatrix& gate_up,
                                                 const MoeOperatorMatrix& down, void* stream);

}  // namespace moesaic
