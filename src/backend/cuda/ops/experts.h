// The two products of a layer's experts, of rows and a work list that are there: what the model's MoE
// operator (moe.h) and the one for a caller's own tensors (moe_operator.h) share.
#pragma once

#include <span>

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/layout/matrix.h"
#include "backend/cuda/layout/slab_layout.h"
#include "backend/cuda/ops/rank_exchange.h"
#include "tuning/moe_kernels.h"

namespace moesaic::cuda {

// gate sigmoid(alpha gate) (up + offset), gate clamped to at most limit, up to +-limit.
struct Activation {
  float alpha = 1.702f, limit = 7, offset = 1;
};

// A layer's experts as their kernels read them: a view.
struct LayerExperts {
  int experts = 0, top_k = 0, hidden = 0, intermediate = 0;
  Activation activation;
  bool slabs = false;     // layout/slab_layout.h; else matrices
  bool wgmma = false;     // the device has it, for many rows of slabs
  bool fp8 = false;       // many rows are taken in E4M3
  bool w4a8 = false;      // quads, through kernels/sm120/
  int parts = 1;          // MXFP8 values of an activation that meets quads
  bool emulated = false;  // on a device that has not the instruction
  slabs::SlabLayout layout;
  const Matrix* gate_up = nullptr;
  const Matrix* down = nullptr;
  const uint8_t* fc1_slabs = nullptr;
  const uint8_t* fc2_slabs = nullptr;
  const float* gate_bias = nullptr;  // [experts, h_columns]
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // [experts, out_rows]
  // This rank's columns of the first product and rows of the second, which the weights above make; by default
  // one has all. ranks: null for one.
  Range h_columns{0, intermediate}, out_rows{0, hidden};
  RankExchange* ranks = nullptr;
};
MoeShape shape_of(const LayerExperts& e, int rows);
// The kernels that are compiled for them.
std::span<const MoeKernelConfig> configs_of(const LayerExperts& e);

// [rows, hidden] F16 that were multiplied by `factor`, or BF16 (takes_bf16()).
struct ExpertRows {
  const void* x = nullptr;
  int rows = 0;
  float factor = 1;
};

// Memory that the products and the work list need while they run: pieces of one block of memory.
struct MoeScratch {
  int32_t* ids = nullptr;            // [rows, top_k]
  float* weights = nullptr;          // [rows, top_k]
  int32_t* permuted_rows = nullptr;  // [rows, top_k]
  int32_t* source_rows = nullptr;    // [rows * top_k]
  WorkTile* work_tiles = nullptr;
  int* work_tile_count = nullptr;
  void* tiles = nullptr;    // activations as a kernel wants them
  void* hidden = nullptr;   // the first product
  OfRanks<void> hidden_of;  // the other ranks', too
  float* out = nullptr;     // [permuted rows, hidden]
  int* arrived = nullptr;   // 0 between kernels: its owner clears it once
  int* fault = nullptr;     // its owner's: becomes kGaveUp (kernels/common/gave_up.h)
};
size_t moe_scratch_bytes(int experts, int top_k, int hidden, int intermediate, int rows);
// memory: of moe_scratch_bytes() for at least so many rows.
MoeScratch moe_scratch(void* memory, int experts, int top_k, int hidden, int intermediate, int rows);

// logits: what the work list is to be made from; null where ids are given.
Route routing_of(const LayerExperts& e, int rows, int tile, const float* logits, const MoeScratch& scratch);
// True if a kernel makes the work list by itself, from the logits.
bool routes_itself(const MoeKernelConfig& kernel_config, const Route& routing);

// MoeKernel::kDecode: the whole operator in one launch, for at most kSlabRows rows, from slabs and the
// router's logits. It adds to the residual by itself; of a rank, all of it is there afterwards.
struct ExpertsDecode {
  const __half* x = nullptr;        // [rows, hidden], normalised
  const float* x_scale = nullptr;   // [rows]
  const float* logits = nullptr;    // [rows, experts]
  const float* residual = nullptr;  // [rows, hidden]
  float* out = nullptr;             // [rows, hidden]
  void* h = nullptr;                // slab_scratch_bytes(), all 0xFF at start
  OfRanks<void> h_of;               // the other ranks', too
  void* h_clear = nullptr;          // another launch's h, which this one fills with 0xFF
  size_t clear_bytes = 0;           // size of h_clear
  int rows = 0;
  int* fault = nullptr;  // becomes kGaveUp; may be the host's memory
};
Status run_decode(const LayerExperts& e, const ExpertsDecode& d, cudaStream_t stream);

// Both products; what they leave is in scratch.out, in the places that routing.permuted_rows names. Not for
// MoeKernel::kDecode, which is the whole operator.
Status run_products(const LayerExperts& e, const ExpertRows& x, const MoeKernelConfig& kernel_config,
                    const Route& routing, const MoeScratch& scratch, cudaStream_t stream);

// A block of memory is dealt out in pieces of this alignment.
inline constexpr size_t kPieceAlignment = 256;  // bytes
class MemoryPieces {
 public:
  explicit MemoryPieces(void* memory) : at_(static_cast<std::byte*>(memory)) {}
  template <typename T>
  T* take(size_t bytes) {
    T* const piece = reinterpret_cast<T*>(at_ == nullptr ? nullptr : at_ + bytes_);
    bytes_ += (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
    return piece;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* at_;
  size_t bytes_ = 0;
};

}  // namespace moesaic::cuda
