// RoPE, the paged float32 KV cache, and attention with sinks and a sliding window.
#pragma once

#include <span>
#include <vector>

#include "core/batch.h"
#include "core/model_config.h"

namespace moesaic::reference {

// One layer's keys (rotated) and values.
struct LayerCache {
  std::vector<float> keys, values;  // [pages, page_tokens, kv_heads * head_dim]
};

// Rotates each head of x in place: (x1, x2) are the head's halves.  x: [heads, head_dim]
void rotate(const RopeTable& table, int position, int head_dim, std::span<float> x);

// One layer's cache as seen through one sequence's page table.
struct SequenceCache {
  LayerCache& cache;
  const std::vector<int32_t>& pages;
  int page_tokens;
  size_t kv_size;  // elements of one token

  size_t offset(int position) const {
    const auto page = static_cast<size_t>(pages[static_cast<size_t>(position / page_tokens)]);
    const auto slot = page * static_cast<size_t>(page_tokens) + static_cast<size_t>(position % page_tokens);
    return slot * kv_size;
  }
};

struct AttentionShape {
  int heads, kv_heads, head_dim;
  int first, last;  // positions attended to, inclusive
};

// q, out: [heads, head_dim]; sinks: [heads]
void attend_row(const AttentionShape& shape, std::span<const float> q, std::span<const float> sinks,
                const SequenceCache& kv, std::span<float> out);

}  // namespace moesaic::reference
