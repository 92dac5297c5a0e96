// The other operators of a layer on a caller's own tensors, as moe_operator.h has the experts: attention over
// a paged KV cache, and the dense products with what stands before and behind them (norm, QKV, RoPE and KV
// write; projection and residual; lm_head). moesaic_ops.h is their C interface, moesaic.ops their Python one.
//
// Pointers are of the call's device. kHost: they are of the host, where all is computed in double precision,
// to compare with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/moe_operator.h"
#include "core/format.h"
#include "moesaic/status.h"

namespace moesaic {

inline constexpr int kHost = -1;

// A layer's KV cache: pages of page_tokens rows of head_dim values, of each KV head. NHD: a token's heads lie
// together; HND: a head's tokens do. Strides in values; the values of one token and head lie together.
struct PagedCache {
  void* k = nullptr;  // 16-byte aligned, as each row is
  void* v = nullptr;
  bool fp8 = false;  // E4M3 without scales; else BF16
  int64_t pages = 0;
  int page_tokens = 0;             // 16, 32 or 64
  int kv_heads = 0, head_dim = 0;  // head_dim: 32, 64 or 128
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
};

// Memory that a call may use: at least as many bytes as its workspace takes, 256-byte aligned and used
// by one stream at a time. Null: the library's own, as MoeOperatorCall has it.
struct Scratch {
  void* memory = nullptr;
  size_t bytes = 0;
};

struct PagedAttentionCall {
  int device = 0;
  int64_t rows = 0, sequences = 0;
  int heads = 0;  // a multiple of kv_heads; at most 16 times as many
  PagedCache cache;
  const void* q = nullptr;       // [rows, heads, head_dim] BF16, 16-byte aligned
  void* out = nullptr;           // the same; apart from all that is read
  const float* sinks = nullptr;  // [heads] logits of the sinks; null: none
  int window = 0;                // tokens that a row attends to, itself included; 0: all
  // A sequence's rows are the last tokens of those that the cache has of it.
  const int32_t* starts = nullptr;   // [sequences + 1]: the first row of each, ascending, and the end
  const int32_t* lengths = nullptr;  // [sequences] tokens in the cache, the rows' own included
  const int32_t* tables = nullptr;   // [sequences, table_stride]: the page at each place of a sequence
  int64_t table_stride = 0, table_pages = 0;
  Scratch scratch;
  void* stream = nullptr;  // a cudaStream_t
};
// Depends on device, rows, sequences, heads, cache, window and table_pages; pointers are not looked at.
Result<size_t> attention_workspace_bytes(const PagedAttentionCall& call);
// out[row] = softmax(q k / sqrt(head_dim), and the sink) v over the keys that the row attends to. Launches
// and returns; allocates nothing and waits for nothing where a workspace is given. Rows of no sequence stay
// as they are. A row is NaN where a page that it attends to is none of the cache's, or its sequence has fewer
// tokens than rows, more than its page table has room for, or rows that are not among the call's. On a GPU a
// page that is not there, and a K or V that is not finite, may make NaN other rows of the sequence that are
// computed together, also some that do not attend to it. Pages to which no row attends are not read, nor are
// their numbers.
Status paged_attention(const PagedAttentionCall& call);

// y = W x + bias.
struct DenseMatrix {
  const void* weight = nullptr;           // [rows, cols], 16-byte aligned as each row is
  ElementType type = ElementType::kBF16;  // F32 is rounded to BF16
  int64_t rows = 0, cols = 0;             // cols: a multiple of 32, up to 65,536
  int64_t row_stride = 0;                 // values
  const void* bias = nullptr;             // [rows]; null: none
  ElementType bias_type = ElementType::kBF16;
};
struct DenseOptions {
  int device = 0;
  std::optional<Format> format;  // BF16, MXFP8 or MXFP4, to which the weight is rounded; nothing: as it is
  bool warm_up = true;           // as in MoeOperatorOptions
};

struct DenseCall {
  int64_t tokens = 0;                         // any number; 0 does nothing
  const void* x = nullptr;                    // [tokens, cols] BF16, 16-byte aligned
  void* out = nullptr;                        // [tokens, rows], 16-byte aligned; apart from x
  ElementType out_type = ElementType::kBF16;  // or F32
  const void* residual = nullptr;  // added to the result; out's shape and type. May be out itself. Null: none
  Scratch scratch;
  void* stream = nullptr;
};

// q, k, v = W norm(x) + bias; RoPE on q and k; k and v go to the cache. W's rows: heads of Q, of K, of V.
struct QkvCall {
  int64_t tokens = 0;
  const void* x = nullptr;     // [tokens, cols] BF16, 16-byte aligned
  const void* norm = nullptr;  // [cols]: x / sqrt(mean(x^2) + eps) * norm
  ElementType norm_type = ElementType::kBF16;
  float eps = 1e-5f;
  int heads = 0;
  PagedCache cache;
  const int64_t* positions = nullptr;  // [tokens]
  const void* cos_sin = nullptr;  // [table_positions, head_dim]: cosines of head_dim / 2 angles, then sines
  ElementType cos_sin_type = ElementType::kF32;
  int64_t table_positions = 0;
  // [tokens]: page * page_tokens + place in the page, none twice; below 0: K and V go nowhere
  const int64_t* slots = nullptr;
  void* q = nullptr;  // [tokens, heads, head_dim] BF16
  Scratch scratch;
  void* stream = nullptr;
};

// Thread-safety: several threads may call at once, with workspaces and streams of their own.
class DenseOperator {
 public:
  DenseOperator(int64_t rows, int64_t cols, int device) : rows_(rows), cols_(cols), device_(device) {}
  virtual ~DenseOperator() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int device() const { return device_; }
  // Bytes of scratch memory for a call of either kind. They do not grow beyond some thousand tokens.
  virtual size_t workspace_bytes(int64_t tokens) const = 0;
  // Bytes of the weights.
  virtual size_t bytes() const = 0;
  // The kernel for so many tokens, for people.
  virtual std::string plan(int64_t tokens) const = 0;

  // Both launch and return; they allocate nothing and wait for nothing where a workspace is given.
  Status run(const DenseCall& call) const;
  // A token's q is NaN where its position is not in the table, or its slot is beyond the cache; nothing is
  // written to the cache then.
  Status run(const QkvCall& call) const;

 protected:
  // The calls have been checked, and have tokens and scratch memory.
  virtual Status launch(const DenseCall& call) const = 0;
  virtual Status launch(const QkvCall& call) const = 0;

 private:
  Status check_pointers(const QkvCall& call) const;
  int64_t rows_, cols_;
  int device_;
};
// Repacks the weight to memory of its own: it may be freed when this returns. Waits for the stream, so it
// cannot be captured. Errors: sizes, a device that is absent or that the program has no code for, a weight or
// bias that is not finite, lack of memory.
Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions& options, const DenseMatrix& matrix,
                                                     void* stream);

// These refuse what no device can do. check_sizes() does not look at pointers.
Status check_sizes(const PagedAttentionCall& call);
Status check(const PagedAttentionCall& call);
Status check(const DenseOptions& options, const DenseMatrix& matrix);
Status check(const Scratch& scratch, size_t wanted, const char* op);

}  // namespace moesaic
