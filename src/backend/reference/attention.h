// RoPE, the paged float32 KV cache, and attention with sinks and a sliding window.
#pragma once

#include <span>

#include "base/buffer.h"
#include "core/batch.h"
#include "core/model_config.h"

namespace moesaic::reference {

// One layer's keys (rotated) and values.
struct LayerCache {
  int page_tokens = 0, kv_size = 0;  // kv_size: elements of one token
  Buffer key_memory, value_memory;   // not touched before it is written: most of a long context never is

  std::span<float> keys() const { return floats(key_memory); }  // [pages, page_tokens, kv_size]
  std::span<float> values() const { return floats(value_memory); }
  size_t page_floats() const { return static_cast<size_t>(page_tokens) * static_cast<size_t>(kv_size); }
  // The element at which the position begins, found through a sequence's page table.
  size_t offset(std::span<const int32_t> pages, int position) const {
    return static_cast<size_t>(pages[static_cast<size_t>(position / page_tokens)]) * page_floats() +
           static_cast<size_t>(position % page_tokens) * static_cast<size_t>(kv_size);
  }

 private:
  static std::span<float> floats(const Buffer& memory) {
    return {memory.as<float>(), memory.bytes() / sizeof(float)};
  }
};

// Rotates each head of x in place: (x1, x2) are the head's halves.  x: [heads, head_dim]
void rotate(const RopeTable& table, int position, int head_dim, std::span<float> x);

struct AttentionShape {
  int heads, kv_heads, head_dim;
  int first, last;  // positions attended to, inclusive
};

// q, out: [heads, head_dim]; sinks: [heads], or empty: there are none. pages: of the sequence.
void attend_row(const AttentionShape& shape, std::span<const float> q, std::span<const float> sinks,
                const LayerCache& cache, std::span<const int32_t> pages, std::span<float> out);

}  // namespace moesaic::reference
