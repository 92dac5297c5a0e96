// Panel pairs times tokens by AMX tiles; Tiles is HardwareTiles or EmulatedTiles.
//
// A tile of activations (16 tokens) times a tile of weights (a panel of 16 rows) gives a tile of results,
// lane l of row t being token t's product with row l of the panel. The last tile has as many rows as there
// are tokens left, so that nothing is read beyond the activations.
//
// int8 activations (MXFP4 and int8 weights): every block of 32 has scales of its own, so one TDPBSSD (A of 32
// bytes, B of 8 rows) gives the block's 16 x 16 exact dot products, which are stored, loaded as vectors, and
// scaled and added by the operations that int_tile (kernels_gemm.h) has, in its order. The results are
// int_tile's bit for bit, and a task of few tokens stays there. The weights of both panels are expanded to
// signed bytes in chunks of 512 columns (18 KB), which stay in the first cache (48 KB) over all tokens; the
// sums rest in `out` between chunks.
// Floor of a block of one panel by 16 tokens (8,192 products), in cycles of a Golden Cove core: TDPBSSD 16,
// TILESTORED 16, vectors 16 x (convert, scale, multiply and add) on 2 ports: 24, which bounds it; loads 16
// (activations) + 8 (weights) + 16 (products) + 16 (scales) at 2 to 3 a cycle: 19 to 28. 341 products a cycle
// where int_tile's floor is 93 (16 x 6 tokens: 8 VPDPBUSD and the same 3 a block). Expanding takes 10
// (MXFP4) and 4 (int8) cycles a block and panel, once for all tokens.
//
// BF16: TDPBF16PS rounds in an order of its own (even and odd elements apart), so all tokens take it, one as
// well as many: a result depends on nothing but its own row and the weights. Packed groups of 2 columns are
// rows of B as they stand. 2 panels by 2 x 16 tokens: 4 TDPBF16PS of 16 cycles for 4 loads of 8, hence 512
// products a cycle; the chain of a result has the instruction's latency of 52 cycles a step, and four results
// in flight hide it. Chunks of 256 columns (16 KB of weights) stay in the first cache over all tokens.
//
// MXFP4 as BF16 (table amx_bf16): a code times its block's power of two is a BF16 number, so nothing is
// rounded, blocks need no scaling afterwards, and sums stay in tiles. A step is widened 8 steps ahead of its
// use into a ring of 32 KB, while the first tokens of the steps before are computed: on a Golden Cove core
// 48 operations on 2 ports, 24 cycles, a panel of a step, beside 32 (16 tokens) to 64 cycles of TDPBF16PS for
// both panels. That is 11 bytes of packed weights a cycle, above what a core's share of the memory gives.
#pragma once

#include "backend/cpu/amx.h"
#include "backend/cpu/kernels_gemm.h"
#include "backend/cpu/tile_model.h"

namespace moesaic::cpu {

extern const Kernels kKernels_avx512;

namespace {

constexpr int kTileTokens = 16;

// ---- int8 activations ----

constexpr int64_t kChunkBlocks = 16;

// Registers: two of each kind, for neighbouring blocks, and one for the rows of the last tile.
constexpr int kIntC = 0, kIntA = 2, kIntB = 4, kRestC = 6, kRestA = 7;

constexpr TileConfig int_config(int rest) {
  TileConfig config;
  for (const int set : {0, 1}) {
    config.set(kIntC + set, kTileTokens, kTileBytes);
    config.set(kIntA + set, kTileTokens, kBlock);
    config.set(kIntB + set, kBlock / 4, kTileBytes);
  }
  if (rest > 0) config.set(kRestC, rest, kTileBytes), config.set(kRestA, rest, kBlock);
  return config;
}

// A format's weights as tiles take them. signed_words: word j of panel p's packed block b as signed bytes;
// scale, factor: as in kernels_gemm.h.
struct Mxfp4Weights {
  using Scale = I16;
  static constexpr int64_t kGroup = 256, kScaleGroup = 16;  // bytes of a panel's block
  static MOESAIC_INLINE Bytes signed_words(const uint8_t* data, int p, int64_t b, int j) {
    const auto table =
        reinterpret_cast<__m512i>(load<Bytes>(kE2m1Table) ^ static_cast<uint8_t>(kWeightOffset));
    const Bytes packed = load<Bytes>(data + group_at<kMxfp4Groups>(p, b, j % kMxfp4Groups)),
                codes = j < 4 ? low_nibbles(packed) : high_nibbles(packed);
    return reinterpret_cast<Bytes>(_mm512_shuffle_epi8(table, reinterpret_cast<__m512i>(codes)));
  }
  static I16 scale(const uint8_t* scales) { return exponents(scales); }
  static F16 factor(I16 scale, const float* s) { return scaled(scale, s); }
};
struct Int8Weights {
  using Scale = F16;
  static constexpr int64_t kGroup = 512, kScaleGroup = 32;
  static MOESAIC_INLINE Bytes signed_words(const uint8_t* data, int p, int64_t b, int j) {
    return load<Bytes>(data + group_at<kInt8Groups>(p, b, j)) ^ static_cast<uint8_t>(kWeightOffset);
  }
  static F16 scale(const uint8_t* scales) { return widen_halves(scales); }
  static F16 factor(F16 scale, const float* s) { return scale * splat(*s); }
};

// Blocks [first, first + blocks). Expanded, the second panel's come after the first one's.
struct Chunk {
  int64_t first, blocks;
  int64_t expanded(int p, int64_t b) const { return (p * blocks + b) * kExpandedStride; }
};

template <typename Weights>
void expand_chunk(const PairTask& task, const Chunk& chunk) {
  for (int p = 0; p < kPair; ++p) {
    for (int64_t b = 0; b < chunk.blocks; ++b) {
      const int64_t from = chunk.first + b;
      uint8_t* out = task.scratch + chunk.expanded(p, b);
      for (int j = 0; j < 8; ++j) store(out + j * 64, Weights::signed_words(task.data, p, from, j));
      store(out + kExpandedBlock, Weights::scale(task.scales + (from * kPair + p) * Weights::kScaleGroup));
    }
  }
}

// Asks for the packed weights of the chunk after this one, block by block while the first tokens of this one
// are computed, into the second cache: the first one holds this chunk. Behind a pair's last chunk comes the
// next pair.
template <typename Weights>
class NextChunk {
 public:
  NextChunk(const PairTask& task, const Chunk& chunk, int p, bool wanted)
      : data_(wanted ? task.data + ((chunk.first + kChunkBlocks) * kPair + p) * Weights::kGroup : nullptr),
        scales_(task.scales + ((chunk.first + kChunkBlocks) * kPair + p) * Weights::kScaleGroup) {}
  MOESAIC_INLINE void prefetch(int64_t b) const {
    if (data_ == nullptr) return;
    for (int64_t i = 0; i < Weights::kGroup; i += 64)
      __builtin_prefetch(data_ + b * kPair * Weights::kGroup + i, 0, 2);
    __builtin_prefetch(scales_ + b * kPair * Weights::kScaleGroup, 0, 2);
  }

 private:
  const uint8_t *data_, *scales_;
};

// A chunk of one panel times T tokens. Six steps of neighbouring blocks are under way at once, in this order:
// a block's products are added while those of the third block after it are stored, those of the fourth
// computed, and those of the fifth loaded. A vector load can hardly take what TILESTORED wrote before that
// has left the store buffer, hence the distance.
template <int T, typename Tiles, typename Weights>
class IntPass {
  static constexpr bool kWhole = T == kTileTokens;
  static constexpr int c(int set) { return kWhole ? kIntC + set : kRestC; }
  static constexpr int a(int set) { return kWhole ? kIntA + set : kRestA; }

 public:
  IntPass(Tiles& tiles, const PairTask& task, const Chunk& chunk, int64_t token, int p)
      : tiles_(tiles),
        next_(task, chunk, p, token == 0),
        weights_(task.scratch + chunk.expanded(p, 0)),
        x_(static_cast<const int8_t*>(task.act.data) + token * task.act.stride + chunk.first * kBlock),
        x_stride_(task.act.stride),
        s_stride_(task.act.cols / kBlock) {
    for (int i = 0; i < kBases; ++i) s_[i] = task.act.scale + (token + 4 * i) * s_stride_ + chunk.first;
  }

  // sum: the accumulators of the T tokens.
  MOESAIC_INLINE void run(int64_t blocks, F16 (&sum)[T]) {
    alignas(64) Products products;  // not a member: what the assembly is told of lives in memory
    static_assert(kRing == 4 && kStored + 2 <= 2 * kRing);
    for (int64_t b = -2 * kRing; b < blocks; b += kRing) {
      step<0>(b, blocks, products, sum);
      step<1>(b + 1, blocks, products, sum);
      step<2>(b + 2, blocks, products, sum);
      step<3>(b + 3, blocks, products, sum);
    }
  }

 private:
  static constexpr int kRing = 4;    // blocks whose products are in memory
  static constexpr int kStored = 3;  // blocks from adding to storing
  using Products = int32_t[kRing][T][kPanel];

  // b % kRing is kSlot. The tiles of a block are those of its parity.
  template <int kSlot>
  MOESAIC_INLINE void step(int64_t b, int64_t blocks, Products& products, F16 (&sum)[T]) {
    constexpr int kStore = (kSlot + kStored) % kRing, kDot = (kStore + 1) % 2, kLoad = kStore % 2;
    const auto has = [&](int64_t block) { return block >= 0 && block < blocks; };
    if (has(b + kStored)) tiles_.template store<c(kStore % 2)>(products[kStore], kTileBytes);
    if (has(b + kStored + 1)) dot<kDot>();
    if (has(b + kStored + 2)) load_block<kLoad>(b + kStored + 2);
    if (!has(b)) return;
    next_.prefetch(b);
    add(b, products[kSlot], sum);
  }
  template <int kSet>
  MOESAIC_INLINE void load_block(int64_t b) {
    tiles_.template load<a(kSet)>(x_ + b * kBlock, x_stride_);
    tiles_.template load<kIntB + kSet>(weights_ + b * kExpandedStride, kTileBytes);
  }
  template <int kSet>
  MOESAIC_INLINE void dot() {
    tiles_.template zero<c(kSet)>();
    tiles_.template dot_int8<c(kSet), a(kSet), kIntB + kSet>();
  }
  MOESAIC_INLINE void add(int64_t b, const int32_t (&products)[T][kPanel], F16 (&sum)[T]) const {
    using Scale = typename Weights::Scale;
    const auto scale = load<Scale>(weights_ + b * kExpandedStride + kExpandedBlock);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const F16 factor = Weights::factor(scale, s_[t / 4] + t % 4 * s_stride_ + b);
      sum[t] = fma(to_float(load<I16>(products[t])), factor, sum[t]);
    }
  }

  static constexpr int kBases = (T + 3) / 4;  // an address reaches four rows of scales: 0, 1, 2, 3 strides
  Tiles& tiles_;
  NextChunk<Weights> next_;
  const uint8_t* weights_;
  const int8_t* x_;
  int64_t x_stride_, s_stride_;
  const float* s_[kBases];
};

template <int T, typename Tiles, typename Weights>
__attribute__((noinline)) void int_pass(Tiles& tiles, const PairTask& task, const Chunk& chunk, int first) {
  for (int p = 0; p < kPair; ++p) {
    IntPass<T, Tiles, Weights> pass(tiles, task, chunk, first, p);
    float* out = task.out + (first * kPair + p) * kPanel;
    F16 sum[T] = {};
    if (chunk.first > 0) {
      for (int t = 0; t < T; ++t) sum[t] = load<F16>(out + t * kPair * kPanel);
    }
    pass.run(chunk.blocks, sum);
    for (int t = 0; t < T; ++t) store(out + t * kPair * kPanel, sum[t]);
  }
}

template <typename Tiles, typename Weights>
void int_by_tiles(const PairTask& task) {
  const int64_t blocks = task.act.cols / kBlock;
  const int rest = task.tokens % kTileTokens, whole = task.tokens - rest;
  Tiles tiles(int_config(rest));
  for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
    const Chunk chunk{b, blocks - b < kChunkBlocks ? blocks - b : kChunkBlocks};
    const auto pass = [&]<int T>(int first) { int_pass<T, Tiles, Weights>(tiles, task, chunk, first); };
    expand_chunk<Weights>(task, chunk);
    for (int first = 0; first < whole; first += kTileTokens) pass.template operator()<kTileTokens>(first);
    last_tile<kTileTokens - 1>(pass, whole, rest);
  }
}

// ---- BF16 ----

constexpr int kBf16Columns = 32;                                  // of one TDPBF16PS
constexpr int kBf16Groups = kBf16Columns / 2;                     // rows of B
constexpr int64_t kBf16Step = int64_t{kBf16Groups} * kPair * 64;  // bytes of both panels
constexpr int64_t kBf16Chunk = 8;                                 // steps
constexpr int kBf16C = 0, kBf16A = 4, kBf16B = 6;                 // C of token tile i and panel p: 2i + p

// rows[i]: tokens of token tile i, 0 for none.
constexpr TileConfig bf16_config(int rows0, int rows1) {
  TileConfig config;
  const int rows[2] = {rows0, rows1};
  for (const int i : {0, 1}) {
    config.set(kBf16B + i, kBf16Groups, kTileBytes);
    if (rows[i] == 0) continue;
    config.set(kBf16A + i, rows[i], kTileBytes);
    for (const int p : {0, 1}) config.set(kBf16C + 2 * i + p, rows[i], kTileBytes);
  }
  return config;
}

// Where the tiles of B come from, a step (32 columns) of both panels after the other: tile(s, p) has rows
// kRowBytes apart. begin() comes before the first step, prepare(s) before step s, in order. from_memory: the
// weights are read for the first time.
class PackedSteps {  // kBF16, as it stands
 public:
  static constexpr int64_t kRowBytes = kPair * 64;
  PackedSteps(const PairTask& task, bool from_memory) : task_(task), from_memory_(from_memory) {}
  void begin() const {}
  MOESAIC_INLINE void prepare(int64_t s) const {
    for (int64_t at = 0; from_memory_ && at < kBf16Step; at += kAskBytes)
      prefetch_chunk(task_, s * kBf16Step + at);
  }
  const uint8_t* tile(int64_t s, int p) const { return task_.data + s * kBf16Step + p * 64; }

 private:
  const PairTask& task_;
  bool from_memory_;
};

// BF16 of each code times 2^60, twice: VPERMW looks at five bits. -0 becomes 0.
constexpr uint16_t bf16_of(int exponent, int half) {
  return static_cast<uint16_t>((127 + 60 + exponent) << 7 | half << 6);
}
constexpr uint16_t kPlus[8] = {0,
                               bf16_of(-1, 0),
                               bf16_of(0, 0),
                               bf16_of(0, 1),
                               bf16_of(1, 0),
                               bf16_of(1, 1),
                               bf16_of(2, 0),
                               bf16_of(2, 1)};
struct alignas(64) WidenTable {
  uint16_t of[32] = {};
  constexpr WidenTable() {
    for (int i = 0; i < 32; ++i) of[i] = static_cast<uint16_t>(kPlus[i % 8] | (i % 16 > 8 ? 0x8000 : 0));
  }
};
constexpr WidenTable kWidenTable;

class WidenedSteps {  // kMxfp4 in a ring of BF16
 public:
  static constexpr int64_t kRowBytes = kTileBytes;
  WidenedSteps(const PairTask& task, bool from_memory)
      : task_(task), from_memory_(from_memory), steps_(task.act.cols / kBf16Columns) {}
  void begin() const {
    for (int64_t s = 0; s < kAhead && s < steps_; ++s) widen(s);
  }
  MOESAIC_INLINE void prepare(int64_t s) const {
    if (s + kAhead < steps_) widen(s + kAhead);
  }
  const uint8_t* tile(int64_t s, int p) const { return at(s, p); }

 private:
  static constexpr int64_t kAhead = kBf16Chunk;
  static_assert(kAhead + kBf16Chunk <= kRingBlocks);

  uint8_t* at(int64_t s, int p) const {
    return task_.scratch + (s % kRingBlocks * kPair + p) * (kBf16Groups * kTileBytes);
  }
  MOESAIC_INLINE void widen(int64_t s) const {
    if (from_memory_) prefetch(s);
    for (int p = 0; p < kPair; ++p) {
      const __m512i below = below_2_60(task_.scales + (s * kPair + p) * kPanel);
      uint8_t* out = at(s, p);
#pragma GCC unroll 4
      for (int j = 0; j < kMxfp4Groups; ++j) {
        const __m512i codes = _mm512_loadu_si512(task_.data + group_at<kMxfp4Groups>(p, s, j));
        store_row(out + 256 * j, codes, below);
        store_row(out + 256 * j + 64, _mm512_srli_epi16(codes, 4), below);
        store_row(out + 256 * j + 128, _mm512_srli_epi16(codes, 8), below);
        store_row(out + 256 * j + 192, _mm512_srli_epi16(codes, 12), below);
      }
    }
  }
  // Row 4 * j + i of B: of each word of group j its nibble i. Subtracting from the exponent divides by powers
  // of two; zero has no exponent and stays, since the subtraction saturates.
  static MOESAIC_INLINE void store_row(uint8_t* out, __m512i codes, __m512i below) {
    const __m512i table = _mm512_load_si512(kWidenTable.of);
    _mm512_store_si512(out, _mm512_subs_epu16(_mm512_permutexvar_epi16(codes, table), below));
  }
  // For both words of each of 16 rows: how far the exponent is below 60, at BF16's place. It is 0 to 120
  // (pack.cpp).
  static MOESAIC_INLINE __m512i below_2_60(const uint8_t* scales) {
    const I16 below = ((127 + 60) - widen_bytes(scales)) << 7;
    return reinterpret_cast<__m512i>(below | below << 16);
  }
  MOESAIC_INLINE void prefetch(int64_t s) const {
    constexpr int kBytes = kPair * 256;
    switch (task_.tuning.prefetch) {
      case Prefetch::kNone:
        return;
      case Prefetch::kT0:
        return prefetch_block<Prefetch::kT0>(task_, s, kBytes);
      case Prefetch::kT1:
        return prefetch_block<Prefetch::kT1>(task_, s, kBytes);
      case Prefetch::kNta:
        return prefetch_block<Prefetch::kNta>(task_, s, kBytes);
    }
  }

  const PairTask& task_;
  bool from_memory_;
  int64_t steps_;
};

// Steps [first, last) of both panels times kTokenTiles tiles of tokens from `token` on.
template <int kTokenTiles, typename Tiles, typename Weights>
class Bf16Pass {
 public:
  MOESAIC_INLINE Bf16Pass(Tiles& tiles, const PairTask& task, const Weights& weights, int64_t token)
      : tiles_(tiles),
        weights_(weights),
        x_(static_cast<const uint8_t*>(task.act.data) + token * task.act.stride),
        x_stride_(task.act.stride),
        out_(task.out + token * kPair * kPanel) {}

  MOESAIC_INLINE void run(int64_t first, int64_t last, bool prepares) {
    each_result([&]<int I, int P>() {
      constexpr int kC = kBf16C + 2 * I + P;
      if (first == 0) {
        tiles_.template zero<kC>();
      } else {
        tiles_.template load<kC>(out<I, P>(), kOutStride);
      }
    });
    for (int64_t s = first; s < last; ++s) {
      if (prepares) weights_.prepare(s);
      step(s);
    }
    each_result([&]<int I, int P>() { tiles_.template store<kBf16C + 2 * I + P>(out<I, P>(), kOutStride); });
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
  template <int I, int P>
  float* out() const {
    return out_ + I * kTileTokens * kPair * kPanel + P * kPanel;
  }
  template <int I>
  MOESAIC_INLINE void load_tokens(int64_t s) {
    tiles_.template load<kBf16A + I>(x_ + I * kTileTokens * x_stride_ + s * kBf16Columns * 2, x_stride_);
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
  const uint8_t* x_;
  int64_t x_stride_;
  float* out_;
};

// The tokens from `first` on, fewer than 32.
template <typename Tiles, typename Weights>
void bf16_rest(const PairTask& task, int first) {
  const int64_t steps = task.act.cols / kBf16Columns;
  const int rest = task.tokens - first;
  if (rest == 0) return;
  const Weights weights(task, first == 0);
  weights.begin();
  if (rest > kTileTokens) {
    Tiles tiles(bf16_config(kTileTokens, rest - kTileTokens));
    Bf16Pass<2, Tiles, Weights>(tiles, task, weights, first).run(0, steps, true);
  } else {
    Tiles tiles(bf16_config(rest, 0));
    Bf16Pass<1, Tiles, Weights>(tiles, task, weights, first).run(0, steps, true);
  }
}

template <typename Tiles, typename Weights>
void bf16_by_tiles(const PairTask& task) {
  constexpr int kTokens = 2 * kTileTokens;
  const int64_t steps = task.act.cols / kBf16Columns;
  const int whole = task.tokens / kTokens * kTokens;
  if (whole > 0) {
    const Weights weights(task, true);
    weights.begin();
    Tiles tiles(bf16_config(kTileTokens, kTileTokens));
    const int64_t chunk = whole == kTokens ? steps : kBf16Chunk;
    for (int64_t s = 0; s < steps; s += chunk) {
      const int64_t last = steps - s < chunk ? steps : s + chunk;
      for (int first = 0; first < whole; first += kTokens)
        Bf16Pass<2, Tiles, Weights>(tiles, task, weights, first).run(s, last, first == 0);
    }
  }
  bf16_rest<Tiles, Weights>(task, whole);
}

template <typename Tiles>
void gemm_by_tiles(const PairTask& task) {
  if (task.pack == Pack::kBF16) return bf16_by_tiles<Tiles, PackedSteps>(task);
  if (task.act.format == Act::kBF16Nibbles) return bf16_by_tiles<Tiles, WidenedSteps>(task);
  const int from = task.tuning.expand_tokens > 0 ? task.tuning.expand_tokens : kAmxExpandTokens;
  if (task.tokens >= from && task.act.format == Act::kInt8) {
    if (task.pack == Pack::kMxfp4) return int_by_tiles<Tiles, Mxfp4Weights>(task);
    if (task.pack == Pack::kInt8) return int_by_tiles<Tiles, Int8Weights>(task);
  }
  PairTask by_vectors = task;
  by_vectors.tuning.expand_tokens = 0;
  kKernels_avx512.gemm(by_vectors);
}

}  // namespace
}  // namespace moesaic::cpu
