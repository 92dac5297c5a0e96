#include "backend/cpu/kv_cache.h"

#include "base/error.h"

namespace moesaic::cpu {

Result<KvCache> KvCache::allocate(int pages, int kv_heads, int head_dim) {
  KvCache cache{.kv_heads = kv_heads, .head_dim = head_dim, .pages = pages};
  const size_t elements = static_cast<size_t>(pages) * cache.page_stride();
  const size_t scales = static_cast<size_t>(pages) * cache.scale_page_stride();
  ASSIGN_OR_RETURN(cache.k, Buffer::allocate(elements * sizeof(int16_t)));
  ASSIGN_OR_RETURN(cache.v, Buffer::allocate(elements * sizeof(int16_t)));
  ASSIGN_OR_RETURN(cache.k_scale, Buffer::allocate(scales * sizeof(float)));
  ASSIGN_OR_RETURN(cache.v_scale, Buffer::allocate(scales * sizeof(float)));
  return cache;
}

void KvCache::append(const Kernels& kernels, int page, int slot, int head, const float* key,
                     const float* value) {
  int16_t q[256];
  const int64_t base = page * page_stride() + static_cast<int64_t>(head) * kPageTokens * head_dim;
  const int64_t scale = page * scale_page_stride() + static_cast<int64_t>(head) * kPageTokens + slot;
  k_scale.as<float>()[scale] = kernels.quantize_vector(key, head_dim, qk_limit(head_dim), q);
  int16_t* k_page = k.as<int16_t>() + base;
  for (int d = 0; d < head_dim; ++d) k_page[d / 2 * 2 * kPageTokens + 2 * slot + d % 2] = q[d];
  v_scale.as<float>()[scale] = kernels.quantize_vector(value, head_dim, kVLimit, q);
  int16_t* v_page = v.as<int16_t>() + base;
  for (int d = 0; d < head_dim; ++d) v_page[slot / 2 * 2 * head_dim + 2 * d + slot % 2] = q[d];
}

}  // namespace moesaic::cpu
