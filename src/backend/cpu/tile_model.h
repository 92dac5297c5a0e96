// AMX tiles in software, instruction by instruction as Intel's manual defines them (Software Developer's
// Manual, volume 2, TDPBSSD and TDPBF16PS; volume 1, chapter 18): for tests, and for machines without them.
// An instruction that would raise #UD or #GP aborts. All has internal linkage, as in simd.h.
#pragma once

#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace moesaic::cpu {
namespace {

constexpr int kTiles = 8;
constexpr int kTileRows = 16;   // and 4-byte lanes of a row
constexpr int kTileBytes = 64;  // bytes of a row

// The 64 bytes that LDTILECFG reads. A tile that is not used has no rows and no bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

class TileModel {
 public:
  // LDTILECFG: every tile becomes zero.
  void load_config(const TileConfig& config) {
    require(config.palette == 1 && config.start_row == 0, "LDTILECFG: palette 1 from row 0");
    for (const uint8_t byte : config.reserved) require(byte == 0, "LDTILECFG: a reserved byte is set");
    for (int i = 0; i < 16; ++i) {
      require(i < kTiles || (config.rows[i] == 0 && config.row_bytes[i] == 0), "LDTILECFG: 8 tiles");
      require(config.rows[i] <= kTileRows && config.row_bytes[i] <= kTileBytes, "LDTILECFG: 16 rows of 64");
      require((config.rows[i] == 0) == (config.row_bytes[i] == 0), "LDTILECFG: rows without bytes");
    }
    config_ = config;
    configured_ = true;
    std::memset(tiles_, 0, sizeof tiles_);
  }
  // TILERELEASE
  void release() {
    configured_ = false;
    std::memset(tiles_, 0, sizeof tiles_);
  }
  // TILEZERO
  void zero(int tile) {
    require_tile(tile);
    std::memset(&tiles_[tile], 0, sizeof tiles_[tile]);
  }
  // TILELOADD: what the tile's rows leave free becomes zero.
  void load(int tile, const void* from, int64_t stride) {
    zero(tile);
    for (int r = 0; r < rows(tile); ++r) {
      std::memcpy(tiles_[tile].lane[r], static_cast<const uint8_t*>(from) + r * stride,
                  config_.row_bytes[tile]);
    }
  }
  // TILESTORED
  void store(int tile, void* to, int64_t stride) const {
    require_tile(tile);
    for (int r = 0; r < rows(tile); ++r) {
      std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles_[tile].lane[r], config_.row_bytes[tile]);
    }
  }
  // TDPBSSD: lane n of row m of c += the sum over k of the dot products of 4 signed bytes each, lane k of row
  // m of a by lane n of row k of b. Lanes beyond the tiles' bytes are zero and stay so.
  void dot_int8(int c, int a, int b) {
    require_product(c, a, b);
    for (int m = 0; m < rows(c); ++m) {
      auto* sum = reinterpret_cast<int32_t*>(tiles_[c].lane[m]);
      for (int k = 0; k < rows(b); ++k) {
        const uint32_t x = tiles_[a].lane[m][k];
        for (int n = 0; n < kTileRows; ++n) {
          const uint32_t w = tiles_[b].lane[k][n];
          for (int shift = 0; shift < 32; shift += 8) sum[n] += signed_byte(w, shift) * signed_byte(x, shift);
        }
      }
    }
  }
  // TDPBF16PS: even and odd elements are summed apart, from zero, with a fused multiply-add each; then the
  // two sums are added, then c. Subnormal operands count as zero and so do subnormal results.
  void dot_bf16(int c, int a, int b) {
    require_product(c, a, b);
    for (int m = 0; m < rows(c); ++m) {
      float even[kTileRows] = {}, odd[kTileRows] = {};
      for (int k = 0; k < rows(b); ++k) {
        const uint32_t x = tiles_[a].lane[m][k];
        for (int n = 0; n < kTileRows; ++n) {
          const uint32_t w = tiles_[b].lane[k][n];
          even[n] = flush(__builtin_fmaf(widen(x << 16), widen(w << 16), even[n]));
          odd[n] = flush(__builtin_fmaf(widen(x & 0xFFFF0000u), widen(w & 0xFFFF0000u), odd[n]));
        }
      }
      for (int n = 0; n < kTileRows; ++n) {
        const float sum = flush(widen(tiles_[c].lane[m][n]) + flush(even[n] + odd[n]));
        std::memcpy(&tiles_[c].lane[m][n], &sum, 4);
      }
    }
  }

 private:
  struct alignas(64) Tile {
    uint32_t lane[kTileRows][kTileBytes / 4];
  };

  static void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "tile model: %s\n", what);
    std::abort();
  }
  void require_tile(int tile) const {
    require(configured_, "no tiles are configured");
    require(tile >= 0 && tile < kTiles && rows(tile) > 0, "the tile is not configured");
    require(config_.row_bytes[tile] % 4 == 0, "a row of the tile is not whole lanes");
  }
  // c is m x n, a m x k and b k x n.
  void require_product(int c, int a, int b) const {
    for (const int tile : {c, a, b}) require_tile(tile);
    require(c != a && a != b && b != c, "the tiles of a product are not three");
    require(rows(c) == rows(a), "the rows of c and a differ");
    require(config_.row_bytes[a] == 4 * rows(b), "the lanes of a and the rows of b differ");
    require(config_.row_bytes[c] == config_.row_bytes[b], "the lanes of c and b differ");
  }
  int rows(int tile) const { return config_.rows[tile]; }

  static int32_t signed_byte(uint32_t word, int shift) {
    return static_cast<int32_t>(word << (24 - shift)) >> 24;
  }
  static float flush(float x) { return x < FLT_MIN && x > -FLT_MIN ? __builtin_copysignf(0, x) : x; }
  // The float of these bits, as an operand.
  static float widen(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return flush(x);
  }

  TileConfig config_;
  bool configured_ = false;
  Tile tiles_[kTiles];
};

// The tiles of a kernel: configured while it lives. HardwareTiles (hardware_tiles.h) is the same by
// instructions.
class EmulatedTiles {
 public:
  explicit EmulatedTiles(const TileConfig& config) { model_.load_config(config); }
  template <int kTile>
  void zero() {
    model_.zero(kTile);
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    model_.load(kTile, from, stride);
  }
  template <int kTile>
  void store(void* to, int64_t stride) const {
    model_.store(kTile, to, stride);
  }
  template <int kC, int kA, int kB>
  void dot_int8() {
    model_.dot_int8(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  void dot_bf16() {
    model_.dot_bf16(kC, kA, kB);
  }

 private:
  TileModel model_;
};

}  // namespace
}  // namespace moesaic::cpu
