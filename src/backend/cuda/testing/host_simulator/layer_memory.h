// Shared by the tests of layer_operators.h: memory of the simulated device, and a paged cache.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "backend/layer_operators.h"
#include "mx/formats.h"

namespace moesaic {

using cuda::DeviceBuffer;
inline constexpr uint8_t kPoison = 0x5A;

template <typename T>
struct OnDevice {
  DeviceBuffer buffer;
  size_t count;
  explicit OnDevice(const std::vector<T>& values)
      : buffer(DeviceBuffer::allocate(std::max<size_t>(1, values.size()) * sizeof(T), "a test").value()),
        count(values.size()) {
    std::memcpy(buffer.as<void>(), values.data(), values.size() * sizeof(T));
  }
  T* data() const { return buffer.as<T>(); }
  std::vector<T> values() const { return {data(), data() + count}; }
};

inline std::vector<uint16_t> random_bf16(size_t count, std::mt19937& rng, float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(count);
  for (uint16_t& v : x) v = mx::encode_bf16(scale * normal(rng));
  return x;
}
inline float bf16(uint16_t code) { return mx::decode_bf16(code); }

// ---- a paged cache, the same twice ----

struct Cache {
  PagedCache shape;
  std::vector<uint8_t> k, v;
  Cache(int page_tokens, bool hnd, bool fp8, int kv_heads, int head_dim, int64_t pages, std::mt19937& rng)
      : shape{.fp8 = fp8,
              .pages = pages,
              .page_tokens = page_tokens,
              .kv_heads = kv_heads,
              .head_dim = head_dim,
              .page_stride = int64_t{page_tokens} * kv_heads * head_dim,
              .token_stride = hnd ? head_dim : int64_t{kv_heads} * head_dim,
              .head_stride = hnd ? int64_t{page_tokens} * head_dim : head_dim} {
    const auto count = static_cast<size_t>(pages * shape.page_stride);
    std::normal_distribution<float> normal;
    for (std::vector<uint8_t>* part : {&k, &v}) {
      part->resize(count * (fp8 ? 1 : 2));
      for (size_t i = 0; i < count; ++i) {
        if (fp8) {
          (*part)[i] = mx::encode_e4m3(normal(rng));
        } else {
          const uint16_t code = mx::encode_bf16(normal(rng));
          std::memcpy(&(*part)[2 * i], &code, 2);
        }
      }
    }
  }
  PagedCache of(void* keys, void* values) const {
    PagedCache c = shape;
    c.k = keys, c.v = values;
    return c;
  }
  float value(const std::vector<uint8_t>& part, size_t i) const {
    if (shape.fp8) return mx::decode_e4m3(part[i]);
    uint16_t code = 0;
    std::memcpy(&code, &part[2 * i], 2);
    return bf16(code);
  }
};

}  // namespace moesaic
