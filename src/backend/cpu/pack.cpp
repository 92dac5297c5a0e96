#include "backend/cpu/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>

#include "backend/cpu/gemm.h"
#include "base/error.h"
#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic::cpu {
namespace {

// A panel's groups of weights and of scales, in bytes (kernels.h draws them).
struct Groups {
  int64_t count, bytes;
  int64_t scale_count, scale_bytes;
};

Groups groups_of(Pack pack, int64_t cols) {
  const int64_t blocks = cols / mx::kBlock;
  switch (pack) {
    case Pack::kMxfp4:
      return {blocks * kMxfp4Groups, 64, blocks, kPanel};
    case Pack::kInt8:
      return {blocks * kInt8Groups, 64, blocks, kPanel * 2};
    case Pack::kBF16:
      return {cols / 2, kPanel * 4, 0, 0};
    case Pack::kF16:
      return {cols, kPanel * 2, 0, 0};
    case Pack::kF32:
      return {cols, kPanel * 4, 0, 0};
    case Pack::kMxfp8:
      return {cols, kPanel, blocks, kPanel};
  }
  return {};
}

// Group g of the panel that begins at `panel`: the other panel of the pair has every second group.
uint8_t* group(uint8_t* panel, int64_t g, int64_t bytes) { return panel + g * kPair * bytes; }

// Per-thread staging of one row that has to be converted.
struct Staging {
  std::vector<float> values;  // [cols]
};

enum class Fault { kNone, kNanScale, kHugeScale, kNotFinite, kTooLarge };

// E8M0 codes outside 2^+-60 would leave the range in which the kernels add exponents (kernels_impl.h). Below
// it a block is far under the rounding of anything it is added to: it becomes zero.
constexpr int kLowScale = 127 - 60, kHighScale = 127 + 60;

Fault check_scale(uint8_t& scale, uint8_t* codes) {
  if (scale == mx::kScaleNan) return Fault::kNanScale;
  if (scale > kHighScale) return Fault::kHugeScale;
  if (scale >= kLowScale) return Fault::kNone;
  scale = kLowScale;
  std::memset(codes, 0, mx::kPackedBlock);
  return Fault::kNone;
}

// Eight nibbles, the lowest first, to eight bytes.
uint64_t spread_nibbles(uint32_t nibbles) {
  uint64_t x = nibbles;
  x = (x | x << 16) & 0x0000FFFF0000FFFFu;
  x = (x | x << 8) & 0x00FF00FF00FF00FFu;
  return (x | x << 4) & 0x0F0F0F0F0F0F0F0Fu;
}

// The canonical order (2j, 2j + 1 in byte j) to the split one (j, j + 16 in byte j), which is GGUF's and the
// panels'.
void split_block(const uint8_t* canonical, uint8_t* split) {
  uint32_t word[4];
  std::memcpy(word, canonical, sizeof word);
  const uint64_t out[2] = {spread_nibbles(word[0]) | spread_nibbles(word[2]) << 4,
                           spread_nibbles(word[1]) | spread_nibbles(word[3]) << 4};
  std::memcpy(split, out, sizeof out);
}

// Block b of row r: its codes in split order and its scale.
void mxfp4_block(const MatrixView& m, int64_t r, int64_t b, const Staging& s, uint8_t* codes,
                 uint8_t& scale) {
  if (m.format == Format::kMxfp4Gguf) {
    const std::byte* source = m.data + r * m.row_stride + b * 17;
    scale = std::to_integer<uint8_t>(source[0]);
    std::memcpy(codes, source + 1, mx::kPackedBlock);
  } else if (m.format == Format::kMxfp4) {
    scale = std::to_integer<uint8_t>(m.scales[r * m.scale_stride + b]);
    split_block(reinterpret_cast<const uint8_t*>(m.data) + r * m.row_stride + b * mx::kPackedBlock, codes);
  } else {
    uint8_t canonical[mx::kPackedBlock];
    scale = mx::quantize_mxfp4(s.values.data() + b * mx::kBlock, canonical);
    split_block(canonical, codes);
  }
}

// Rows that a panel lacks keep this scale.
void fill_scales(uint8_t* scales, int64_t blocks) {
  for (int64_t b = 0; b < blocks; ++b) std::memset(group(scales, b, kPanel), kLowScale, kPanel);
}

Fault pack_mxfp4(const MatrixView& m, int64_t first, int rows, Staging& s, uint8_t* data, uint8_t* scales) {
  const int64_t blocks = m.cols / mx::kBlock;
  fill_scales(scales, blocks);
  for (int r = 0; r < rows; ++r) {
    if (!is_mxfp4(m.format)) read_row(m, first + r, s.values);
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t codes[mx::kPackedBlock];
      uint8_t& scale = group(scales, b, kPanel)[r];
      mxfp4_block(m, first + r, b, s, codes, scale);
      if (const Fault f = check_scale(scale, codes); f != Fault::kNone) return f;
      for (int j = 0; j < kMxfp4Groups; ++j)
        std::memcpy(data + group_at<kMxfp4Groups>(0, b, j) + 4 * r, codes + 4 * j, 4);
    }
  }
  return Fault::kNone;
}

// One block of a row to int8: taken as it is from Q8_0, quantised as Q8_0 does from anything else.
void int8_block(const MatrixView& m, int64_t row, int64_t block, const float* values, int8_t* q,
                uint16_t& scale) {
  if (m.format == Format::kQ8_0) {
    const std::byte* source = m.data + row * m.row_stride + block * 34;
    std::memcpy(&scale, source, 2);
    std::memcpy(q, source + 2, 32);
    return;
  }
  scale = quantize_q8_0(values + block * mx::kBlock, q);
}

Fault pack_int8(const MatrixView& m, int64_t first, int rows, int offset, Staging& s, uint8_t* data,
                uint8_t* scales) {
  const int64_t blocks = m.cols / mx::kBlock;
  for (int r = 0; r < kPanel; ++r) {
    if (r < rows && m.format != Format::kQ8_0) read_row(m, first + r, s.values);
    for (int64_t b = 0; b < blocks; ++b) {
      int8_t q[mx::kBlock] = {};
      uint16_t scale = 0;
      if (r < rows) int8_block(m, first + r, b, s.values.data(), q, scale);
      if (mx::is_nan(mx::decode_f16(scale))) return Fault::kNotFinite;
      if (!std::isfinite(mx::decode_f16(scale)))
        return m.format == Format::kQ8_0 ? Fault::kNotFinite : Fault::kTooLarge;
      std::memcpy(group(scales, b, kPanel * 2) + r * 2, &scale, 2);
      for (int j = 0; j < kInt8Groups; ++j) {
        uint32_t word;
        std::memcpy(&word, q + 4 * j, 4);
        word ^= static_cast<uint32_t>(offset) * 0x01010101u;  // adding 128 to a byte flips its top bit
        std::memcpy(data + group_at<kInt8Groups>(0, b, j) + 4 * r, &word, 4);
      }
    }
  }
  return Fault::kNone;
}

// BF16 as it stands, two columns at a time.
Fault pack_bf16(const MatrixView& m, int64_t first, int rows, uint8_t* data) {
  for (int r = 0; r < rows; ++r) {
    const std::byte* row = m.data + (first + r) * m.row_stride;
    for (int64_t c = 0; c < m.cols; c += 2) {
      uint32_t pair;
      std::memcpy(&pair, row + c * 2, 4);
      if ((pair & 0x7F80u) == 0x7F80u || (pair & 0x7F800000u) == 0x7F800000u) return Fault::kNotFinite;
      std::memcpy(group(data, c / 2, kPanel * 4) + 4 * r, &pair, 4);
    }
  }
  return Fault::kNone;
}

Fault pack_plain(Pack pack, const MatrixView& m, int64_t first, int rows, Staging& s, uint8_t* data) {
  for (int r = 0; r < rows; ++r) {
    read_row(m, first + r, s.values);
    for (int64_t c = 0; c < m.cols; ++c) {
      const float v = s.values[c];
      if (!std::isfinite(v)) return Fault::kNotFinite;
      if (pack == Pack::kF32) {
        std::memcpy(group(data, c, kPanel * 4) + r * 4, &v, 4);
      } else if (pack == Pack::kF16) {
        const uint16_t half = mx::encode_f16(v);
        if ((half & 0x7C00) == 0x7C00) return Fault::kTooLarge;
        std::memcpy(group(data, c, kPanel * 2) + r * 2, &half, 2);
      } else {
        const uint16_t half = mx::encode_bf16(v);
        if ((half & 0x7F80) == 0x7F80) return Fault::kTooLarge;
        std::memcpy(group(data, c / 2, kPanel * 4) + 4 * r + c % 2 * 2, &half, 2);
      }
    }
  }
  return Fault::kNone;
}

Fault pack_mxfp8(const MatrixView& m, int64_t first, int rows, Staging& s, uint8_t* data, uint8_t* scales) {
  const int64_t blocks = m.cols / mx::kBlock;
  fill_scales(scales, blocks);
  for (int r = 0; r < rows; ++r) {
    if (m.format != Format::kMxfp8) read_row(m, first + r, s.values);
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t codes[mx::kBlock], scale;
      if (m.format == Format::kMxfp8) {
        std::memcpy(codes, m.data + (first + r) * m.row_stride + b * mx::kBlock, mx::kBlock);
        scale = std::to_integer<uint8_t>(m.scales[(first + r) * m.scale_stride + b]);
      } else {
        scale = mx::quantize_mxfp8(s.values.data() + b * mx::kBlock, codes);
      }
      if (scale == mx::kScaleNan) return Fault::kNanScale;
      if (scale > kHighScale) return Fault::kHugeScale;
      group(scales, b, kPanel)[r] = std::max<uint8_t>(scale, 1);
      for (int i = 0; i < mx::kBlock; ++i) {
        if ((codes[i] & 0x7F) == 0x7F) return Fault::kNotFinite;
        group(data, b * mx::kBlock + i, kPanel)[r] = scale < 1 ? uint8_t{0} : codes[i];
      }
    }
  }
  return Fault::kNone;
}

Fault pack_panel(Pack pack, const PanelSource& p, int offset, Staging& s, uint8_t* data, uint8_t* scales) {
  const int rows = static_cast<int>(std::min<int64_t>(kPanel, p.source->rows - p.first));
  switch (pack) {
    case Pack::kMxfp4:
      return pack_mxfp4(*p.source, p.first, rows, s, data, scales);
    case Pack::kInt8:
      return pack_int8(*p.source, p.first, rows, offset, s, data, scales);
    case Pack::kMxfp8:
      return pack_mxfp8(*p.source, p.first, rows, s, data, scales);
    case Pack::kBF16:
      if (p.source->format == Format::kBF16 && p.source->col_stride == 2)
        return pack_bf16(*p.source, p.first, rows, data);
      [[fallthrough]];
    default:
      return pack_plain(pack, *p.source, p.first, rows, s, data);
  }
}

Status explain(Fault fault, const std::string& name) {
  switch (fault) {
    case Fault::kNone:
      return {};
    case Fault::kNanScale:
      return invalid("{}: a block scale is NaN; the checkpoint is damaged", name);
    case Fault::kHugeScale:
      return invalid("{}: a block scale is above 2^60; the checkpoint is damaged", name);
    case Fault::kNotFinite:
      return invalid("{}: a weight is NaN or infinite; the checkpoint is damaged", name);
    case Fault::kTooLarge:
      return invalid("{}: a weight is too large for the format it is converted to", name);
  }
  return {};
}

}  // namespace

Pack pack_format(Format format, std::optional<Format> wanted) {
  constexpr Pack kPacks[] = {Pack::kF32,   Pack::kF16,   Pack::kBF16, Pack::kInt8,
                             Pack::kMxfp4, Pack::kMxfp4, Pack::kMxfp8};  // by Format
  return kPacks[static_cast<size_t>(made_of(format, wanted))];
}

Format mx_format(Pack pack) {
  if (pack == Pack::kMxfp4) return Format::kMxfp4;
  return pack == Pack::kMxfp8 ? Format::kMxfp8 : Format::kF32;
}

Act act_format(Pack pack, const Kernels& kernels) {
  if (pack == Pack::kMxfp4) return kernels.mxfp4_act;
  if (pack == Pack::kInt8) return Act::kInt8;
  return pack == Pack::kBF16 ? Act::kBF16 : Act::kF32;
}

std::vector<PanelSource> stack(const std::vector<const MatrixView*>& sections) {
  std::vector<PanelSource> panels;
  for (const MatrixView* m : sections) {
    for (int64_t row = 0; row < m->rows; row += kPanel) panels.push_back({m, row});
  }
  return panels;
}

int64_t PackedMatrix::slot_by_node(int64_t pair) const {
  const int64_t in_section = node_begins.back(), section = pair / in_section, at = pair % in_section;
  size_t node = 0;
  while (at >= node_begins[node + 1]) ++node;
  const int64_t begin = node_begins[node], share = node_begins[node + 1] - begin;
  return sections * begin + section * share + at - begin;
}

Result<PackedMatrix> pack_panels(Pack pack, int64_t cols, std::vector<PanelSource> sources,
                                 const std::string& name, const Kernels& kernels, ThreadPool& pool,
                                 int64_t sections) {
  const Groups groups = groups_of(pack, cols);
  PackedMatrix packed{.pack = pack,
                      .cols = cols,
                      .panels = std::ssize(sources),
                      .data_stride = kPair * groups.count * groups.bytes,
                      .scale_stride = kPair * groups.scale_count * groups.scale_bytes,
                      .sections = sections};
  if (packed.panels % kPair != 0) sources.push_back({sources.back().source, sources.back().source->rows});
  const int64_t pairs = packed.pairs() / sections;  // of a section
  MOESAIC_CHECK(pairs * sections == packed.pairs());
  for (int node = 0; node <= pool.nodes(); ++node) packed.node_begins.push_back(pool.node_begin(pairs, node));
  ASSIGN_OR_RETURN(packed.data, Buffer::allocate(packed.pairs() * packed.data_stride));
  ASSIGN_OR_RETURN(packed.scales, Buffer::allocate(packed.pairs() * packed.scale_stride));
  std::vector<Staging> staging(pool.threads());
  for (Staging& s : staging) s.values.resize(cols);
  std::atomic<int> fault{0};
  for_each_pair(pool, sections, pairs, {}, [&](int64_t section, int64_t at, int thread) {
    const int64_t pair = section * pairs + at, slot = packed.slot(pair);
    for (int64_t panel = 0; panel < kPair; ++panel) {
      const Fault f =
          pack_panel(pack, sources[kPair * pair + panel], kernels.weight_offset, staging[thread],
                     packed.data.as<uint8_t>() + slot * packed.data_stride + panel * groups.bytes,
                     packed.scales.as<uint8_t>() + slot * packed.scale_stride + panel * groups.scale_bytes);
      if (f != Fault::kNone) fault.store(static_cast<int>(f), std::memory_order_relaxed);
    }
  });
  RETURN_IF_ERROR(explain(static_cast<Fault>(fault.load()), name));
  return packed;
}

}  // namespace moesaic::cpu
