// The paged KV cache of one layer, HND: page, KV head, then tokens. K is int8 and V a 12-bit integer in 16
// bits, each vector with one F32 scale: dot products run on integer units at four times (K) and twice (V) the
// BF16 rate. K's error is that of the int8 activations it was computed from; V's is below BF16's for all but
// its smallest elements.
#pragma once

#include "backend/cpu/kernels.h"
#include "base/buffer.h"
#include "moesaic/status.h"

namespace moesaic::cpu {

struct KvCache {
  int kv_heads = 0, head_dim = 0, pages = 0;
  Buffer k;                 // int8 + weight_offset [pages, kv_heads, kPageTokens * head_dim]
  Buffer v;                 // int16, the same shape; both in the order that kernels_impl.h draws
  Buffer k_scale, v_scale;  // float [pages, kv_heads, kPageTokens]

  static Result<KvCache> allocate(int pages, int kv_heads, int head_dim);

  // Stores one token's K and V of one head. key, value: [head_dim].
  void append(const Kernels& kernels, int page, int slot, int head, const float* key, const float* value);
  int64_t page_stride() const { return static_cast<int64_t>(kv_heads) * kPageTokens * head_dim; }
  int64_t scale_page_stride() const { return static_cast<int64_t>(kv_heads) * kPageTokens; }
};

}  // namespace moesaic::cpu
