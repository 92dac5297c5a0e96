// BF16 weights, and MXFP4 weights as BF16, by AMX tiles.
//
// TDPBF16PS rounds in an order of its own (even and odd elements apart). So with BF16 weights all tokens take
// it, one as well as many: a result depends on nothing but its own row and the weights. Packed groups of 2
// columns are rows of B as they stand. 2 panels by 2 x 16 tokens: 4 TDPBF16PS of 16 cycles for 4 loads of 8,
// hence 512 products a cycle; the chain of a result has the instruction's latency of 52 cycles a step, and
// four results in flight hide it. Chunks of 192 columns (12 KB of weights) stay in the first cache over all
// tokens.
//
// MXFP4: a code times its block's power of two is a BF16 number, and activations are block floating point
// (Act::kBlockFloat). So a block's sum is exact, blocks need no scaling afterwards, and sums stay in tiles. A
// step is widened one step ahead of its use, while the first tokens of the step before are computed. On a
// Golden Cove core that takes 128 operations for both panels on 2 ports, 64 cycles, beside 16 (one tile of
// tokens) to 64 cycles of TDPBF16PS: 8 bytes of packed weights a cycle, above what a core's share of the
// memory gives.
#pragma once

#include "backend/cpu/kernels_gemm.h"
#include "backend/cpu/tile_model.h"

namespace moesaic::cpu {
namespace {

constexpr int kBf16Columns = 32;                                  // columns that one TDPBF16PS takes
constexpr int kBf16Groups = kBf16Columns / 2;                     // rows of B
constexpr int64_t kBf16Step = int64_t{kBf16Groups} * kPair * 64;  // bytes of both panels
constexpr int64_t kBf16Chunk = 6;                                 // steps, where a task takes them in chunks
constexpr int kBf16C = 0, kBf16A = 4, kBf16B = 6;                 // C of token tile i and panel p: 2i + p

// Tiles of so many tokens.
constexpr TileConfig bf16_config(int tokens) {
  TileConfig config;
  for (const int i : {0, 1}) {
    config.set(kBf16B + i, kBf16Groups, kTileBytes);
    config.set(kBf16A + i, tokens, kTileBytes);
    for (const int p : {0, 1}) config.set(kBf16C + 2 * i + p, tokens, kTileBytes);
  }
  return config;
}

// Then each step is used once, and sums stay in tiles; else steps are taken in chunks.
inline bool takes_one_pass(const PairTask& task) { return task.tokens <= 2 * kTileRows; }

// Where the tiles of B come from, a step (32 columns) of both panels after the other: tile(s, p) has rows
// kRowBytes apart. begin() comes before the first step, prepare(s) before the first use of step s, in order.
class PackedSteps {  // kBF16, as it stands
 public:
  static constexpr int64_t kRowBytes = kPair * 64;
  explicit PackedSteps(const PairTask& task) : task_(task) {}
  void begin() const {}
  MOESAIC_INLINE void prepare(int64_t s) const {
    for (int64_t at = 0; at < kBf16Step; at += kAskBytes) prefetch_chunk(task_, s * kBf16Step + at);
  }
  const uint8_t* tile(int64_t s, int p) const { return task_.data + s * kBf16Step + p * 64; }

 private:
  const PairTask& task_;
};

// BF16 of each code times 2^60: the low bytes of all 16, then the high ones, as VPERMB takes bytes. -0
// becomes 0.
struct alignas(64) WidenTable {
  uint8_t of[64] = {};
  constexpr WidenTable() {
    for (int code = 0; code < 16; ++code) {
      const int value = kE2m1Table.value[code] - kE2m1Offset, doubled = value < 0 ? -value : value;
      if (doubled == 0) continue;
      int exponent = 127 + 60 - 1, top = 1;
      while (2 * top <= doubled) top *= 2, ++exponent;
      const int bits = (value < 0 ? 0x8000 : 0) | exponent << 7 | (doubled - top) * 128 / top;
      of[code] = static_cast<uint8_t>(bits), of[16 + code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
constexpr WidenTable kWidenTable;

// kMxfp4 in a ring of BF16, which is to stay in the first cache: a store that finds its line in the second
// one takes four times as long, and half of the time would go there.
class WidenedSteps {
 public:
  static constexpr int64_t kRowBytes = kTileBytes;
  // With one pass two places are enough.
  explicit WidenedSteps(const PairTask& task)
      : task_(task),
        steps_(task.act.cols / kBf16Columns),
        mask_(takes_one_pass(task) ? kAhead : kRingBlocks - 1) {}
  void begin() const {
    for (int64_t s = 0; s < kAhead && s < steps_; ++s) widen(s);
  }
  MOESAIC_INLINE void prepare(int64_t s) const {
    if (s + kAhead < steps_) widen(s + kAhead);
  }
  const uint8_t* tile(int64_t s, int p) const { return at(s, p); }

 private:
  static constexpr int64_t kAhead = 1;
  static_assert(kAhead + kBf16Chunk <= kRingBlocks && (kRingBlocks & (kRingBlocks - 1)) == 0);
  static_assert((kAhead & (kAhead + 1)) == 0);  // a mask, too

  uint8_t* at(int64_t s, int p) const {
    return task_.scratch + ((s & mask_) * kPair + p) * (kBf16Groups * kTileBytes);
  }
  MOESAIC_INLINE void widen(int64_t s) const {
    prefetch(s);
    for (int p = 0; p < kPair; ++p) {
      const __m512i below = below_2_60(task_.scales + (s * kPair + p) * kPanel);
      uint8_t* out = at(s, p);
#pragma GCC unroll 4
      for (int j = 0; j < kMxfp4Groups; ++j) {
        const __m512i codes = _mm512_loadu_si512(task_.data + group_at<kMxfp4Groups>(p, s, j));
        store_row<0>(out + 256 * j, codes, below), store_row<1>(out + 256 * j + 64, codes, below);
        store_row<2>(out + 256 * j + 128, codes, below), store_row<3>(out + 256 * j + 192, codes, below);
      }
    }
  }
  // Row 4 * j + i of B: of each word of group j its nibble i, which comes to stand in both bytes of the word
  // and picks a low and a high byte. (VPERMW would take the nibble as it is, but two operations, one of them
  // on the port of shifts and subtractions.) Subtracting from the exponent divides by powers of two; zero has
  // no exponent and stays, since the subtraction saturates.
  template <int kNibble>
  static MOESAIC_INLINE void store_row(uint8_t* out, __m512i codes, __m512i below) {
    constexpr int64_t kFirstBits = 0x3030202010100000;  // the first bit of each byte, in its 64 bits
    const __m512i nibbles =
        _mm512_multishift_epi64_epi8(_mm512_set1_epi64(kFirstBits + 0x0404040404040404 * kNibble), codes);
    constexpr int kFirstAndSecondOrThird = 0xEA;
    const __m512i places = _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi8(15), _mm512_set1_epi16(0x1000),
                                                     kFirstAndSecondOrThird);
    const __m512i row = _mm512_permutexvar_epi8(places, _mm512_load_si512(kWidenTable.of));
    _mm512_store_si512(out, _mm512_subs_epu16(row, below));
  }
  // For both words of each of 16 rows: how far the exponent is below 60, at BF16's place. It is 0 to 120
  // (pack.cpp).
  static MOESAIC_INLINE __m512i below_2_60(const uint8_t* scales) {
    const I16 below = ((127 + 60) - widen_bytes(scales)) << 7;
    return reinterpret_cast<__m512i>(below | below << 16);
  }
  MOESAIC_INLINE void prefetch(int64_t s) const {
    with_hint(task_.tuning.prefetch, [&]<Prefetch kHint>() { prefetch_block<kHint>(task_, s, kPair * 256); });
  }

  const PairTask& task_;
  int64_t steps_, mask_;
};

// Steps [first, last) of both panels times the tokens from `token` on: one tile of at most 16 tokens, or two
// of 16 for 16 to 32 tokens, which then share tokens and give them the same sums.
template <int kTokenTiles, typename Tiles, typename Weights>
class Bf16Pass {
 public:
  MOESAIC_INLINE Bf16Pass(Tiles& tiles, const PairTask& task, const Weights& weights, int token, int tokens)
      : tiles_(tiles), weights_(weights), x_stride_(task.act.stride) {
    for (int i = 0; i < kTokenTiles; ++i) {
      const int64_t at = token + i * (tokens - kTileRows);
      x_[i] = static_cast<const uint8_t*>(task.act.data) + at * task.act.stride;
      out_[i] = task.out + at * kPair * kPanel;
    }
  }

  MOESAIC_INLINE void run(int64_t first, int64_t last, bool prepares) {
    each_result([&]<int I, int P>() {
      constexpr int kC = kBf16C + 2 * I + P;
      if (first == 0) {
        tiles_.template zero<kC>();
      } else {
        tiles_.template load<kC>(out_[I] + P * kPanel, kOutStride);
      }
    });
    for (int64_t s = first; s < last; ++s) {
      if (prepares) weights_.prepare(s);
      step(s);
    }
    each_result(
        [&]<int I, int P>() { tiles_.template store<kBf16C + 2 * I + P>(out_[I] + P * kPanel, kOutStride); });
  }

 private:
  static constexpr int64_t kOutStride = kPair * kPanel * sizeof(float);
  template <typename Body>
  MOESAIC_INLINE void each_result(const Body& body) {
    body.template operator()<0, 0>();
    body.template operator()<0, 1>();
    if constexpr (kTokenTiles == 2) {
      body.template operator()<1, 0>();
      body.template operator()<1, 1>();
    }
  }
  template <int I>
  MOESAIC_INLINE void load_tokens(int64_t s) {
    tiles_.template load<kBf16A + I>(x_[I] + s * kBf16Columns * 2, x_stride_);
  }
  MOESAIC_INLINE void step(int64_t s) {
    load_tokens<0>(s);
    if constexpr (kTokenTiles == 2) load_tokens<1>(s);
    tiles_.template load<kBf16B>(weights_.tile(s, 0), Weights::kRowBytes);
    tiles_.template load<kBf16B + 1>(weights_.tile(s, 1), Weights::kRowBytes);
    each_result(
        [&]<int I, int P>() { tiles_.template dot_bf16<kBf16C + 2 * I + P, kBf16A + I, kBf16B + P>(); });
  }

  Tiles& tiles_;
  const Weights& weights_;
  const uint8_t* x_[kTokenTiles];
  float* out_[kTokenTiles];
  int64_t x_stride_;
};

// A chunk of weights after the other, each for all tokens, so that it is prepared once. All tiles have 16
// tokens, or all tokens of the task where it has fewer; an odd number of tiles ends with a pass of one, and
// the passes of two share the other tokens evenly.
template <typename Tiles, typename Weights>
void bf16_by_tiles(const PairTask& task) {
  const int64_t steps = task.act.cols / kBf16Columns;
  const int token_tiles = (task.tokens + kTileRows - 1) / kTileRows, pairs = token_tiles / 2;
  const int single = token_tiles % 2 == 0 ? 0 : task.tokens < kTileRows ? task.tokens : kTileRows;
  const int paired = task.tokens - single;
  const int64_t chunk = takes_one_pass(task) ? steps : kBf16Chunk;
  const Weights weights(task);
  weights.begin();
  Tiles tiles(bf16_config(single > 0 ? single : kTileRows));
  for (int64_t s = 0; s < steps; s += chunk) {
    const int64_t last = steps - s < chunk ? steps : s + chunk;
    for (int i = 0; i < pairs; ++i) {
      const int first = paired * i / pairs, end = paired * (i + 1) / pairs;
      Bf16Pass<2, Tiles, Weights>(tiles, task, weights, first, end - first).run(s, last, i == 0);
    }
    if (single > 0)
      Bf16Pass<1, Tiles, Weights>(tiles, task, weights, paired, single).run(s, last, pairs == 0);
  }
}

}  // namespace
}  // namespace moesaic::cpu
