// Int8 weights times int8 activations by AMX tiles.
//
// Every block of 32 has scales of its own, so one TDPBSSD (A of 32 bytes, B of 8 rows) gives the block's
// 16 x 16 exact dot products, which are stored, loaded as vectors, and scaled and added by the operations
// that int_tile (kernels_gemm.h) has, in its order. The results are int_tile's bit for bit, and a task of few
// tokens stays there. The weights of both panels are expanded to signed bytes in chunks of 512 columns
// (18 KB), which stay in the first cache (48 KB) over all tokens; the sums rest in `out` between chunks.
// Floor of a block of one panel by 16 tokens (8,192 products), in cycles of a Golden Cove core: TDPBSSD 16,
// TILESTORED 16, vectors 16 x (convert, scale, multiply and add) on 2 ports: 24, which bounds it; loads 16
// (activations) + 8 (weights) + 16 (products) + 16 (scales) at 2 to 3 a cycle: 19 to 28. 341 products a cycle
// where int_tile's floor is 93 (16 x 6 tokens: 8 VPDPBUSD and the same 3 a block). Expanding takes 4
// cycles a block and panel, once for all tokens.
#pragma once

#include "backend/cpu/kernels_gemm.h"
#include "backend/cpu/tile_model.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kChunkBlocks = 16;

// Registers: two of each kind, for neighbouring blocks, and one for the rows of the last tile.
constexpr int kIntC = 0, kIntA = 2, kIntB = 4, kRestC = 6, kRestA = 7;

constexpr TileConfig int_config(int rest) {
  TileConfig config;
  for (const int set : {0, 1}) {
    config.set(kIntC + set, kTileRows, kTileBytes);
    config.set(kIntA + set, kTileRows, kBlock);
    config.set(kIntB + set, kBlock / 4, kTileBytes);
  }
  if (rest > 0) config.set(kRestC, rest, kTileBytes), config.set(kRestA, rest, kBlock);
  return config;
}

// Blocks [first, first + blocks). Expanded, the second panel's come after the first one's.
struct Chunk {
  int64_t first, blocks;
  int64_t expanded(int p, int64_t b) const { return (p * blocks + b) * kExpandedStride; }
};

constexpr int64_t kInt8ScaleBlock = 32;  // bytes of the scales of a panel's block

// As signed bytes, and F32 scales.
inline void expand_chunk(const PairTask& task, const Chunk& chunk) {
  for (int p = 0; p < kPair; ++p) {
    for (int64_t b = 0; b < chunk.blocks; ++b) {
      const int64_t from = chunk.first + b;
      uint8_t* out = task.scratch + chunk.expanded(p, b);
      for (int j = 0; j < kInt8Groups; ++j) {
        const Bytes packed = load<Bytes>(task.data + group_at<kInt8Groups>(p, from, j));
        store(out + j * 64, packed ^ static_cast<uint8_t>(kWeightOffset));
      }
      store(out + kExpandedBlock, widen_halves(task.scales + (from * kPair + p) * kInt8ScaleBlock));
    }
  }
}

// Asks for the packed weights of the chunk after this one, block by block while the first tokens of this one
// are computed, into the second cache: the first one holds this chunk. Behind a pair's last chunk comes the
// next pair.
class NextChunk {
 public:
  NextChunk(const PairTask& task, const Chunk& chunk, int p, bool wanted)
      : data_(wanted ? task.data + ((chunk.first + kChunkBlocks) * kPair + p) * kExpandedBlock : nullptr),
        scales_(task.scales + ((chunk.first + kChunkBlocks) * kPair + p) * kInt8ScaleBlock) {}
  MOESAIC_INLINE void prefetch(int64_t b) const {
    if (data_ == nullptr) return;
    for (int64_t i = 0; i < kExpandedBlock; i += 64)
      __builtin_prefetch(data_ + b * kPair * kExpandedBlock + i, 0, 2);
    __builtin_prefetch(scales_ + b * kPair * kInt8ScaleBlock, 0, 2);
  }

 private:
  const uint8_t *data_, *scales_;
};

// A chunk of one panel times T tokens. Six steps of neighbouring blocks are under way at once, in this order:
// a block's products are added while those of the third block after it are stored, those of the fourth
// computed, and those of the fifth loaded. A vector load can hardly take what TILESTORED wrote before that
// has left the store buffer, hence the distance.
template <int T, typename Tiles>
class IntPass {
  static constexpr bool kWhole = T == kTileRows;
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
    const auto scale = load<F16>(weights_ + b * kExpandedStride + kExpandedBlock);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const F16 factor = scale * splat(s_[t / 4][t % 4 * s_stride_ + b]);
      sum[t] = fma(to_float(load<I16>(products[t])), factor, sum[t]);
    }
  }

  static constexpr int kBases = (T + 3) / 4;  // an address reaches four rows of scales: 0, 1, 2, 3 strides
  Tiles& tiles_;
  NextChunk next_;
  const uint8_t* weights_;
  const int8_t* x_;
  int64_t x_stride_, s_stride_;
  const float* s_[kBases];
};

template <int T, typename Tiles>
__attribute__((noinline)) void int_pass(Tiles& tiles, const PairTask& task, const Chunk& chunk, int first) {
  for (int p = 0; p < kPair; ++p) {
    IntPass<T, Tiles> pass(tiles, task, chunk, first, p);
    float* out = task.out + (first * kPair + p) * kPanel;
    F16 sum[T] = {};
    if (chunk.first > 0) {
      for (int t = 0; t < T; ++t) sum[t] = load<F16>(out + t * kPair * kPanel);
    }
    pass.run(chunk.blocks, sum);
    for (int t = 0; t < T; ++t) store(out + t * kPair * kPanel, sum[t]);
  }
}

template <typename Tiles>
void int_by_tiles(const PairTask& task) {
  const int64_t blocks = task.act.cols / kBlock;
  const int rest = task.tokens % kTileRows, whole = task.tokens - rest;
  Tiles tiles(int_config(rest));
  for (int64_t b = 0; b < blocks; b += kChunkBlocks) {
    const Chunk chunk{b, blocks - b < kChunkBlocks ? blocks - b : kChunkBlocks};
    const auto pass = [&]<int T>(int first) { int_pass<T, Tiles>(tiles, task, chunk, first); };
    expand_chunk(task, chunk);
    for (int first = 0; first < whole; first += kTileRows) pass.template operator()<kTileRows>(first);
    last_tile<kTileRows - 1>(pass, whole, rest);
  }
}

}  // namespace
}  // namespace moesaic::cpu
