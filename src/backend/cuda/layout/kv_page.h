// A page of the KV cache: 32 tokens of one KV head.
//
// K is rows of head_dim dimensions, V rows of 32 tokens, in the order in which Hopper's matrix instructions
// and ldmatrix read shared memory without bank conflicts: within rows of 128 or 64 bytes, the 16-byte chunks
// are permuted by the row's number (the 128- and 64-byte swizzles of the PTX ISA, "Shared memory matrix
// layout"). A page is copied to shared memory as it stands.
//
//   K [pages, kv_heads, max(1, head_dim / 64), 32, min(64, head_dim)], V [pages, kv_heads, head_dim, 32]
//
// In FP8 the shapes are the same, a byte an element, and the rows as they are: neighbouring lanes read them
// whole.
#pragma once

#include "base/host_device.h"
#include "core/kv_page.h"

namespace moesaic::cuda {

static_assert(kPageTokens == 32);  // V's rows are 64 bytes, and the kernels' tiles are made for them

// Chunk `chunk` of a row of 64 or 128 bytes, in elements of 16 bits.
MOESAIC_HOST_DEVICE constexpr int swizzled_chunk(int row_bytes, int row, int chunk) {
  return 8 * (row_bytes == 128 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3));
}

// Elements from the start of a page to dimension d of token `token`. Rows narrower than 64 are all
// there is, so that nothing is divided by their width.
MOESAIC_HOST_DEVICE constexpr int k_at(int head_dim, int token, int d) {
  const int width = head_dim < 64 ? head_dim : 64;
  return (d / 64 * kPageTokens + token) * width + swizzled_chunk(2 * width, token, d % 64 / 8) + d % 8;
}
MOESAIC_HOST_DEVICE constexpr int v_at(int token, int d) {
  return d * kPageTokens + swizzled_chunk(64, d, token / 8) + token % 8;
}

// The same in FP8.
MOESAIC_HOST_DEVICE constexpr int k8_at(int head_dim, int token, int d) {
  const int width = head_dim < 64 ? head_dim : 64;
  return (d / 64 * kPageTokens + token) * width + d % 64;
}
MOESAIC_HOST_DEVICE constexpr int v8_at(int token, int d) { return d * kPageTokens + token; }

}  // namespace moesaic::cuda
