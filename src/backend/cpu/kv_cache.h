// The paged KV cache of one layer, HND: page, KV head, then tokens. K and V are 16-bit integers with one F32
// scale per token and head: finer than BF16 for every element within 2^4 of its vector's largest, at the same
// size, and dot products run on integer units at twice the BF16 rate.
#pragma once

#include "backend/cpu/kernels.h"
#include "base/buffer.h"
#include "moesaic/status.h"

namespace moesaic::cpu {

struct KvCache {
  int kv_heads = 0, head_dim = 0, pages = 0;
  Buffer k, v;  // int16 [pages, kv_heads, kPageTokens * head_dim], order inside a page in kernels_impl.h
  Buffer k_scale, v_scale;  // float [pages, kv_heads, kPageTokens]

  static Result<KvCache> allocate(int pages, int kv_heads, int head_dim);

  // Stores one token's K and V of one head. key, value: [head_dim].
  void append(const Kernels& kernels, int page, int slot, int head, const float* key, const float* value);
  int64_t page_stride() const { return static_cast<int64_t>(kv_heads) * kPageTokens * head_dim; }
  int64_t scale_page_stride() const { return static_cast<int64_t>(kv_heads) * kPageTokens; }
};

}  // namespace moesaic::cpu
