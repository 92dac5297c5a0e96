#include "backend/cpu/kv_cache.h"

#include "base/error.h"

namespace moesaic::cpu {

Result<KvCache> KvCache::allocate(int pages, int kv_heads, int head_dim) {
  KvCache cache{.kv_heads = kv_heads, .head_dim = head_dim, .pages = pages};
  const size_t elements = static_cast<size_t>(pages) * cache.page_stride();
  const size_t scales = static_cast<size_t>(pages) * cache.scale_page_stride();
  ASSIGN_OR_RETURN(cache.k, Buffer::allocate(elements));
  ASSIGN_OR_RETURN(cache.v, Buffer::allocate(elements * sizeof(int16_t)));
  ASSIGN_OR_RETURN(cache.k_scale, Buffer::allocate(scales * sizeof(float)));
  ASSIGN_OR_RETURN(cache.v_scale, Buffer::allocate(scales * sizeof(float)));
  return cache;
}

void KvCache::append(const Kernels& kernels, int page, int slot, int head, const float* key,
                     const float* value) {
  const int64_t base = page * page_stride() + static_cast<int64_t>(head) * kPageTokens * head_dim;
  const int64_t scale = page * scale_page_stride() + static_cast<int64_t>(head) * kPageTokens + slot;
  int8_t k8[256];
  int32_t sum;
  k_scale.as<float>()[scale] = kernels.quantize_int8(key, head_dim, k8, &sum);
  uint8_t* k_page = k.as<uint8_t>() + base;
  for (int d = 0; d < head_dim; ++d)
    k_page[d / 4 * 4 * kPageTokens + 4 * slot + d % 4] = static_cast<uint8_t>(k8[d] + kernels.weight_offset);
  int16_t v16[256];
  v_scale.as<float>()[scale] = kernels.quantize_int16(value, head_dim, v16);
  int16_t* v_page = v.as<int16_t>() + base;
  constexpr int kWords = kPageTokens / 2;
  for (int d = 0; d < head_dim; ++d) v_page[(slot % kWords * head_dim + d) * 2 + slot / kWords] = v16[d];
}

}  // namespace moesaic::cpu
