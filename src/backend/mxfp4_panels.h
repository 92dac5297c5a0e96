// MXFP4 weights as the CPU computes with them, and as a device finds them that copies them from there: panels
// of 16 rows, two of them a pair. Plain constants, the same on host and device.
//
// A panel with K columns has K/8 groups of 64 bytes, 4 a block of 32 columns: byte 4 * row + i (i < 4) of
// group j holds the block's element 4 * j + i in its low and 16 + 4 * j + i in its high nibble. Its scales
// are K/32 groups of 16 bytes (E8M0). In a pair each group of the first panel is followed by the same group
// of the second; scales likewise.
#pragma once

#include <cstdint>

namespace moesaic {

inline constexpr int kPanel = 16;  // rows of weights in a panel
inline constexpr int kPair = 2;    // panels that are computed together

// Groups of a block of 32 columns, 64 bytes each, and where group j of block b of panel p stands.
inline constexpr int kMxfp4Groups = 4;
template <int kGroups>
constexpr int64_t group_at(int p, int64_t b, int j) {
  return ((b * kGroups + j) * kPair + p) * 64;
}
// Where the scale of a row of block b of panel p stands.
constexpr int64_t panel_scale_at(int p, int64_t b, int row) { return (b * kPair + p) * kPanel + row; }

}  // namespace moesaic
