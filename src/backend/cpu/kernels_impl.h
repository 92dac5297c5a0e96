// The kernels, written once over simd.h and compiled once per instruction set: a source file defines
// MOESAIC_ISA and includes this one with its own machine flags.
#pragma once

#include "backend/cpu/kernels_attend.h"
#include "backend/cpu/kernels_gemm.h"

namespace moesaic::cpu {
namespace {

// Takes the weights' offset out of a block's sum (BlockSum). sums: of the elements i and i + 16 in lane
// i.
inline int32_t block_bias(const I16& sums) {
#if MOESAIC_SHORT_SUMS
  // The first two of each four products are summed in the low half of a word.
  const I16 high = (lane_numbers() & 2) << 30 >> 31;
  const int32_t all = reduce_add(sums), upper = reduce_add(sums & high);
  return static_cast<int32_t>((static_cast<uint32_t>(-kE2m1Offset * (all - upper)) & 0xFFFFu) |
                              static_cast<uint32_t>(-kE2m1Offset * upper) << 16);
#else
  return -kWeightOffset * reduce_add(sums);
#endif
}

// Hides from the compiler where p points.
MOESAIC_INLINE void launder(const uint8_t*& p) { __asm__ volatile("" : "+r"(p)); }

// As many sums at a time as hide the latency of a product. Weights are loaded in each round and pinned for
// each sum, or a product would be made once and added again and again.
int64_t multiply(int64_t rounds) {
  constexpr int64_t kOperations = 2 * 64;  // one product has 64 bytes of weights
  alignas(64) uint8_t bytes[64];
  std::memset(bytes, 3, sizeof bytes);
  const uint8_t* from = bytes;
  I16 all = {};
#if MOESAIC_DOTPROD
  constexpr int kVectors = 4;
  const int8_t* x[kVectors];
  for (const int8_t*& vector : x) vector = reinterpret_cast<const int8_t*>(bytes);
  DotTile<kVectors, kZipExpanded> tile;
  const auto operand = tile.operand(x, 0);
  for (int64_t i = 0; i < rounds; ++i) {
    launder(from);
    const Bytes w = load<Bytes>(from);
    tile.template add<0>({w, w}, operand);
  }
  for (int t = 0; t < kVectors; ++t) all = all + tile.dot(t);
  const int64_t operations = rounds * 2 * kVectors * kOperations;
#else
#if MOESAIC_AVX512
  constexpr int kSums = 12;
#else
  constexpr int kSums = 5;
#endif
  BlockSum<true> sums[kSums] = {};
  const I16 x = load<I16>(bytes);
  for (int64_t i = 0; i < rounds; ++i) {
    launder(from);
    Bytes w = load<Bytes>(from);
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) {
      pin(w);
      sums[s].add(w, x);
    }
  }
#pragma GCC unroll 12
  for (int s = 0; s < kSums; ++s) all = all + sums[s].dot();
  const int64_t operations = rounds * kSums * kOperations;
#endif
  int32_t lane = reduce_add(all);
  __asm__ volatile("" : "+r"(lane));
  return operations;
}

void quantize_row(const float* x, int64_t n, int8_t* q, float* scale, int32_t* bias) {
  // 2^+-60 bound the scale (see exponents()); a block below is zero, one above is caught as non-finite
  // before.
  constexpr float kSmallest = 8.67361737988403547e-19f, kLargest = 1.152921504606846976e18f;
  for (int64_t b = 0; b < n / kBlock; ++b) {
    const F16 low = load<F16>(x + b * kBlock), high = load<F16>(x + b * kBlock + 16);
    float s = reduce_max(max(abs(low), abs(high))) / 127.0f;
    const float inverse = s > kSmallest ? 1.0f / s : 0.0f;
    s = s < kSmallest ? kSmallest : s > kLargest ? kLargest : s;
    const I16 a = to_int(low * splat(inverse)), c = to_int(high * splat(inverse));
    store_narrow(q + b * kBlock, a);
    store_narrow(q + b * kBlock + 16, c);
    scale[b] = s;
    bias[b] = block_bias(a + c);
  }
}

void to_bf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    out[i] = static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
}

bool rmsnorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  F16 squares = {};
  for (int64_t i = 0; i < n; i += 16) {
    const F16 v = load<F16>(x + i);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(n);
  if (!(mean <= 3.0e38f)) return false;
  const F16 factor = splat(1.0f / __builtin_sqrtf(mean + eps));
  F16 most = {};
  for (int64_t i = 0; i < n; i += 16) {
    const F16 v = load<F16>(x + i) * factor * load<F16>(weight + i);
    most = max(most, abs(v));
    store(out + i, v);
  }
  constexpr float kMost = 0x1p59f;  // quantize_row can scale no more
  return reduce_max(most) < kMost;
}

void swiglu_tile(const float* tile, const float* gate_bias, const float* up_bias, int tokens, float alpha,
                 float limit, float* out, int64_t out_stride) {
  const F16 gb = load<F16>(gate_bias), ub = load<F16>(up_bias);
  for (int t = 0; t < tokens; ++t) {
    // In this order a NaN stays one.
    const F16 g = min(splat(limit), load<F16>(tile + t * 32) + gb);
    const F16 u = min(splat(limit), max(splat(-limit), load<F16>(tile + t * 32 + 16) + ub));
    // sigmoid(z) = 1 / (1 + e^-z); through e^-|z| so that the exponential never overflows.
    const F16 z = g * splat(alpha);
    const F16 e = exp2_nonpositive(abs(z) * splat(-kLog2E));
    const F16 sigmoid = select(z < splat(0.0f), e, splat(1.0f)) / (splat(1.0f) + e);
    store(out + t * out_stride, g * sigmoid * (u + splat(1.0f)));
  }
}

void combine(const float* const* y, const float* const* bias, const float* weight, int top_k, int64_t n,
             float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    F16 sum = load<F16>(out + i);
    for (int k = 0; k < top_k; ++k) {
      sum = fma(load<F16>(y[k] + i) + load<F16>(bias[k] + i), splat(weight[k]), sum);
    }
    store(out + i, sum);
  }
}

void rope(float* x, int heads, int head_dim, const float* cosine, const float* sine) {
  const int half = head_dim / 2;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cosine[i] - b * sine[i];
      x[i + half] = b * cosine[i] + a * sine[i];
    }
  }
}

// Anything else times 0 is NaN.
bool finite(const float* x, int64_t n) {
  F16 zero = {};
  for (int64_t i = 0; i < n; i += 16) zero = fma(load<F16>(x + i), splat(0.0f), zero);
  return reduce_add(zero) == 0.0f;
}

inline float amax(const float* x, int n) {
  F16 top = splat(1e-20f);
  for (int i = 0; i < n; i += 16) top = max(top, abs(load<F16>(x + i)));
  return reduce_max(top);
}

float quantize_int8(const float* x, int n, int8_t* q, int32_t* sum) {
  const float top = amax(x, n);
  const F16 inverse = splat(127.0f / top);
  I16 total = {};
  for (int i = 0; i < n; i += 16) {
    const I16 v = to_int(load<F16>(x + i) * inverse);
    total = total + v;
    store_narrow(q + i, v);
  }
  *sum = reduce_add(total);
  return top / 127.0f;
}

float quantize_int16(const float* x, int n, int16_t* q) {
  const float top = amax(x, n);
  const F16 inverse = splat(static_cast<float>(kVLimit) / top);
  for (int i = 0; i < n; i += 16) store_narrow(q + i, to_int(load<F16>(x + i) * inverse));
  return top / static_cast<float>(kVLimit);
}

}  // namespace

#define MOESAIC_STRING_(x) #x
#define MOESAIC_STRING(x) MOESAIC_STRING_(x)
#define MOESAIC_JOIN_(a, b) a##b
#define MOESAIC_JOIN(a, b) MOESAIC_JOIN_(a, b)
extern const Kernels MOESAIC_JOIN(kKernels_, MOESAIC_ISA);
const Kernels MOESAIC_JOIN(kKernels_, MOESAIC_ISA) = {
    .name = MOESAIC_STRING(MOESAIC_ISA),
    .weight_offset = kWeightOffset,
    .expand_tokens = kExpandTokens,
    .expands_int8 = false,
    .mxfp4_act = Act::kInt8,
    .gemm = gemm,
    .multiply = multiply,
    .quantize_row = quantize_row,
    .to_bf16 = to_bf16,
    .to_block_float = nullptr,
    .rmsnorm = rmsnorm,
    .swiglu_tile = swiglu_tile,
    .combine = combine,
    .rope = rope,
    .finite = finite,
    .quantize_int8 = quantize_int8,
    .quantize_int16 = quantize_int16,
    .attend = attend,
};

}  // namespace moesaic::cpu
