// What a multiplying warp of dense_decode sums up: 32 rows of kTiles tiles of 8 tokens.
#pragma once

#include "backend/cuda/sm90a/dense_decode_rows.cuh"

namespace moesaic::cuda::sm90a {

inline constexpr int kTileTokens = 8;

// Sums of weights that are widened to 16 bits, or have them. Two chains of MMAs where the block's scales do
// not part them anyway.
template <class Source, int kTiles>
struct Sums16 {
  static constexpr int kChains = Source::kScaled ? 1 : 2, kPasses = 1;
  float v[2][kTiles][kChains][4] = {};

  // Where this lane finds its token's columns of block 0.
  struct Columns {
    const uint8_t* at[kTiles];
    __device__ Columns(const uint8_t* rows, int stride, int tokens, int lane) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        at[t] = rows + min(kTileTokens * t + lane / 4, tokens - 1) * stride + lane % 4 * 16;
    }
  };

  // half: the MMA tile of the block; -1: both. kPass: of the tokens.
  template <int kPass>
  __device__ __forceinline__ void add(int half, const Source& w, const Columns& x, int block) {
    uint4 columns[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      columns[t] = *reinterpret_cast<const uint4*>(x.at[t] + block * kPlaceBytes<Source>);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (half >= 0 && m != half) continue;
      const Fragment f0 = w.fragment(m, 0), f1 = w.fragment(m, 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (Source::kScaled) {
          float d[4] = {};
          mma<Source::kBf16>(d, f0, columns[t].x, columns[t].y);
          mma<Source::kBf16>(d, f1, columns[t].z, columns[t].w);
#pragma unroll
          for (int i = 0; i < 4; ++i) v[m][t][0][i] = fmaf(d[i], w.scale(m, i / 2), v[m][t][0][i]);
        } else {
          mma<Source::kBf16>(v[m][t][0], f0, columns[t].x, columns[t].y);
          mma<Source::kBf16>(v[m][t][kChains - 1], f1, columns[t].z, columns[t].w);
        }
      }
    }
  }
  // i < 4: row 16 m + 8 (i / 2) + lane / 4 of token(t, i).
  __device__ float get(int m, int t, int i) const {
    return v[m][t][0][i] + (kChains > 1 ? v[m][t][kChains - 1][i] : 0.0f);
  }
  __device__ static int token(int t, int i, int lane) { return kTileTokens * t + 2 * (lane % 4) + i % 2; }
};

// d = a b + c: a unsigned, b signed bytes.
__device__ inline void mma_bytes(int32_t (&d)[4], uint4 a, uint2 b, int32_t c0, int32_t c1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%10,%11};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(c0), "r"(c1));
}

// Sums by MMAs of bytes: a tile's 8 columns are the upper and the lower bytes of four tokens.
template <int kTiles>
struct SumsOfIntegers {
  static constexpr int kPasses = 2 * kTiles;
  float v[2][kTiles][4] = {};

  struct Columns {
    const uint8_t *bytes[kTiles][2], *integers[kTiles][2];  // of four tokens each
    __device__ Columns(const uint8_t* rows, int stride, int tokens, int lane) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const int first = kTileTokens * t + 4 * u;
          bytes[t][u] =
              rows + min(first + lane / 8, tokens - 1) * stride + lane / 4 % 2 * kBlock + lane % 4 * 8;
          integers[t][u] = rows + min(first + lane % 4, tokens - 1) * stride + 2 * kBlock;
        }
      }
    }
  };

  // Four tokens a pass.
  template <int kPass>
  __device__ __forceinline__ void add(int half, const Q8Source& w, const Columns& x, int block) {
    constexpr int t = kPass / 2, u = kPass % 2;
    const int at = block * kPlaceBytes<Q8Source>;
    const uint2 b = *reinterpret_cast<const uint2*>(x.bytes[t][u] + at);
    const auto c = *reinterpret_cast<const int4*>(x.integers[t][u] + at);  // an Integers
    const float scale = __int_as_float(c.z);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (half >= 0 && m != half) continue;
      int32_t d[4];
      mma_bytes(d, w.q[m], b, c.x, c.y);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float upper = __int_as_float(d[2 * h]) - kMagicFloat,
                    lower = __int_as_float(d[2 * h + 1]) - kMagicFloat;
        v[m][t][2 * h + u] = fmaf(fmaf(256.0f, upper, lower), w.scale(m, h) * scale, v[m][t][2 * h + u]);
      }
    }
  }
  __device__ float get(int m, int t, int i) const { return v[m][t][i]; }
  __device__ static int token(int t, int i, int lane) { return kTileTokens * t + 4 * (i % 2) + lane % 4; }
};

template <class Source, int kTiles>
using DenseSums = std::conditional_t<kByIntegers<Source>, SumsOfIntegers<kTiles>, Sums16<Source, kTiles>>;

}  // namespace moesaic::cuda::sm90a
