#include "backend/cpu/kernels_amx.h"

namespace moesaic::cpu {

void gemm_amx_emulated(const PairTask& task) { gemm_by_tiles<EmulatedTiles>(task); }

void amx_to_bf16_nibbles(const float* x, int64_t n, uint16_t* out) {
  alignas(64) uint16_t order[kBlock];
  for (int i = 0; i < kBlock; ++i) order[i] = static_cast<uint16_t>(nibble_element(i));
  const __m512i places = _mm512_load_si512(order);
  kKernels_avx512.to_bf16(x, n, out);
  for (int64_t i = 0; i < n; i += kBlock)
    _mm512_storeu_si512(out + i, _mm512_permutexvar_epi16(places, _mm512_loadu_si512(out + i)));
}

}  // namespace moesaic::cpu
