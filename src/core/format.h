// Weight formats. What there is to know of one is in its row of formats(): readers, writers, packers and
// names derive from it. docs/design/adding.md has the steps for a new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moesaic {

// A row is stored as blocks along its columns.
enum class Format : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,       // GGUF: blocks of 34 bytes: an F16 scale, then 32 int8
  kMxfp4,      // Hugging Face: data 16 bytes a block (element 2j low nibble), scales apart, 1 byte a block
  kMxfp4Gguf,  // GGUF type 39: blocks of 17 bytes: scale, then 16 bytes (element j low nibble, j + 16 high)
  kMxfp8,      // data 32 E4M3 bytes a block, scales apart, 1 byte a block
  kCount
};

// Blocks whose scales, where they stand apart, lie side by side.
struct StoredBlocks {
  const std::byte* data;
  int64_t stride;  // bytes from block to block
  const std::byte* scales;
  int64_t count;
};

struct FormatInfo {
  Format format;
  std::string_view name;
  std::string_view option;            // its name for --dense; empty: dense matrices are not made in it
  int block = 1, bytes = 0;           // elements of a block, and bytes of its data
  int scale_bytes = 0;                // a block's, in a place of their own
  bool mx = false;                    // an OCP Microscaling format
  bool fits_bf16 = false;             // BF16 holds every value
  std::string_view safetensors = {};  // type of a dense matrix there; its scales are X_scale; empty: none
  int gguf = -1;                      // GGUF's number of the type; -1: none
  int gguf_file = -1;                 // llama.cpp's number of a file whose experts have it
  void (*decode)(const StoredBlocks& from, float* out);  // exact
  // Rounds whole blocks, to nearest even. What is not finite stays so.
  void (*encode)(const float* x, int64_t blocks, std::byte* data, std::byte* scales);
  bool (*finite)(const StoredBlocks& blocks);  // no NaN, no infinity, and no scale that is one

  // No other program knows dense matrices in it.
  constexpr bool only_ours() const { return scale_bytes > 0 && !safetensors.empty(); }
  // Bits that one element costs, its share of the scale included.
  constexpr double bits() const { return 8.0 * (bytes + scale_bytes) / block; }
};

// True of a table with one row for each format, in the order of the enumeration.
template <typename Row, size_t n>
constexpr bool in_order(const Row (&rows)[n]) {
  for (size_t i = 0; i < n; ++i) {
    if (rows[i].format != Format{static_cast<uint8_t>(i)}) return false;
  }
  return n == static_cast<size_t>(Format::kCount);
}

std::span<const FormatInfo> formats();  // by Format
const FormatInfo& info_of(Format format);
std::string dense_options(std::string_view between);  // the names for --dense
// The format that a file calls so: a type of safetensors or GGUF.
std::optional<Format> stored_format(std::string_view type);

inline std::string_view format_name(Format format) { return info_of(format).name; }
// One element is addressable by itself: F32, F16 and BF16.
inline bool is_plain(Format format) { return info_of(format).block == 1; }
inline bool is_mx(Format format) { return info_of(format).mx; }
constexpr bool is_mxfp4(Format format) { return format == Format::kMxfp4 || format == Format::kMxfp4Gguf; }
inline double bits_per_element(Format format) { return info_of(format).bits(); }
// Bytes of the data part of one row of `cols` elements stored densely, and of its scales.
int64_t row_bytes(Format format, int64_t cols);
int64_t row_scale_bytes(Format format, int64_t cols);

// Rounds x, which holds whole blocks, to the values that the format keeps of it.
void round_to(Format format, std::span<float> x);

// A block's nibbles in the canonical order (2j, 2j + 1 in byte j, mx/block.h) to GGUF's (j, j + 16), and
// back.
void to_gguf_order(const uint8_t* canonical, uint8_t* out);
void to_canonical_order(const uint8_t* gguf, uint8_t* out);

}  // namespace moesaic
