#include "backend/cpu/kernels_amx.h"

namespace moesaic::cpu {

void gemm_amx_emulated(const PairTask& task) { gemm_by_tiles<EmulatedTiles>(task); }
int64_t multiply_amx_emulated(int64_t rounds) { return multiply_tiles<EmulatedTiles>(rounds); }

namespace {

// The unit of a block of 32. As integers all magnitudes are in order, what is no number last.
float unit_of(const F16& low, const F16& high) {
  constexpr int kBias = 127;
  constexpr int32_t kAbove254 = 0x800000 - 0x7E8000;  // from 254.5 / 128 on the next power of two is needed
  const I16 a = as_int(abs(low)), b = as_int(abs(high));
  const int32_t largest =
      _mm512_reduce_max_epi32(_mm512_max_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  if (largest >= (kMostBlockExponent + 1 + kBias) << 23) return __builtin_nanf("");
  const int exponent = (largest + kAbove254) >> 23, least = kLeastBlockExponent + kBias;
  const int32_t bits = ((exponent < least ? least : exponent) - 7) << 23;
  float unit;
  std::memcpy(&unit, &bits, sizeof unit);
  return unit;
}

}  // namespace

void amx_to_block_float(const float* x, int64_t n, uint16_t* out, int8_t* parts, float* unit, int32_t* bias) {
  // The high halves of 32 floats in two registers, which are BF16.
  alignas(64) uint16_t order[kBlock];
  for (int i = 0; i < kBlock; ++i) order[i] = static_cast<uint16_t>(2 * nibble_element(i) + 1);
  const __m512i halves = _mm512_load_si512(order);
  for (int64_t at = 0; at < n; at += kBlock) {
    const F16 x16[2] = {load<F16>(x + at), load<F16>(x + at + 16)};
    const float u = unit_of(x16[0], x16[1]);
    I16 multiples[2];
    __m512i exact[2];  // nothing is lost: a power of two times at most 254 is a BF16 number
    for (int i = 0; i < 2; ++i) {
      multiples[i] = to_int(x16[i] * splat(1 / u));
      exact[i] = reinterpret_cast<__m512i>(to_float(multiples[i]) * splat(u));
      const I16 half = multiples[i] >> 1;
      store_narrow(parts + at + 16 * i, half);
      store_narrow(parts + n + at + 16 * i, multiples[i] - half);
    }
    _mm512_storeu_si512(out + at, _mm512_permutex2var_epi16(exact[0], halves, exact[1]));
    unit[at / kBlock] = u;
    // Any integers where the unit is not a number, hence unsigned.
    const auto sum = static_cast<uint32_t>(reduce_add(multiples[0] + multiples[1]));
    bias[at / kBlock] = static_cast<int32_t>(0u - kWeightOffset / 2 * sum);
  }
}

}  // namespace moesaic::cpu
