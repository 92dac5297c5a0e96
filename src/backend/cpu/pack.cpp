#include "backend/cpu/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "backend/cpu/gemm.h"
#include "base/error.h"
#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic::cpu {
namespace {

// Group g of the panel that begins at `panel`: the other panel of the pair has every second group.
uint8_t* group(uint8_t* panel, int64_t g, int64_t bytes) { return panel + g * kPair * bytes; }

// A panel to be packed: rows [first, first + rows) of a matrix, at most kPanel.
struct PanelTask {
  const MatrixView& m;
  int64_t first;
  int rows, offset;         // offset: Kernels::weight_offset
  std::span<float> values;  // scratch for one row
  uint8_t *data, *scales;
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
void mxfp4_block(const MatrixView& m, int64_t r, int64_t b, std::span<const float> values, uint8_t* codes,
                 uint8_t& scale) {
  if (m.format == Format::kMxfp4Gguf) {
    const std::byte* source = m.data + r * m.row_stride + row_bytes(m.format, b * mx::kBlock);
    scale = std::to_integer<uint8_t>(source[0]);
    std::memcpy(codes, source + 1, mx::kPackedBlock);
  } else if (m.format == Format::kMxfp4) {
    scale = std::to_integer<uint8_t>(m.scales[r * m.scale_stride + b]);
    split_block(reinterpret_cast<const uint8_t*>(m.data) + r * m.row_stride + b * mx::kPackedBlock, codes);
  } else {
    uint8_t canonical[mx::kPackedBlock];
    scale = mx::quantize_mxfp4(values.data() + b * mx::kBlock, canonical);
    split_block(canonical, codes);
  }
}

// Rows that a panel lacks keep this scale.
void fill_scales(uint8_t* scales, int64_t blocks) {
  for (int64_t b = 0; b < blocks; ++b) std::memset(group(scales, b, kPanel), kLowScale, kPanel);
}

Fault pack_mxfp4(const PanelTask& p) {
  const int64_t blocks = p.m.cols / mx::kBlock;
  fill_scales(p.scales, blocks);
  for (int r = 0; r < p.rows; ++r) {
    if (!is_mxfp4(p.m.format)) read_row(p.m, p.first + r, p.values);
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t codes[mx::kPackedBlock];
      uint8_t& scale = group(p.scales, b, kPanel)[r];
      mxfp4_block(p.m, p.first + r, b, p.values, codes, scale);
      if (const Fault f = check_scale(scale, codes); f != Fault::kNone) return f;
      for (int j = 0; j < kMxfp4Groups; ++j)
        std::memcpy(p.data + group_at<kMxfp4Groups>(0, b, j) + 4 * r, codes + 4 * j, 4);
    }
  }
  return Fault::kNone;
}

// One block of a row to int8: taken as it is from Q8_0, quantised as Q8_0 does from anything else.
void int8_block(const MatrixView& m, int64_t row, int64_t block, const float* values, int8_t* q,
                uint16_t& scale) {
  if (m.format == Format::kQ8_0) {
    const std::byte* source = m.data + row * m.row_stride + row_bytes(m.format, block * mx::kBlock);
    std::memcpy(&scale, source, 2);
    std::memcpy(q, source + 2, mx::kBlock);
    return;
  }
  scale = quantize_q8_0(values + block * mx::kBlock, q);
}

Fault pack_int8(const PanelTask& p) {
  const int64_t blocks = p.m.cols / mx::kBlock;
  const bool stored = p.m.format == Format::kQ8_0;
  for (int r = 0; r < kPanel; ++r) {
    if (r < p.rows && !stored) read_row(p.m, p.first + r, p.values);
    for (int64_t b = 0; b < blocks; ++b) {
      int8_t q[mx::kBlock] = {};
      uint16_t scale = 0;
      if (r < p.rows) int8_block(p.m, p.first + r, b, p.values.data(), q, scale);
      if (mx::is_nan(mx::decode_f16(scale))) return Fault::kNotFinite;
      if (!std::isfinite(mx::decode_f16(scale))) return stored ? Fault::kNotFinite : Fault::kTooLarge;
      std::memcpy(group(p.scales, b, kPanel * 2) + r * 2, &scale, 2);
      for (int j = 0; j < kInt8Groups; ++j) {
        uint32_t word;
        std::memcpy(&word, q + 4 * j, 4);
        word ^= static_cast<uint32_t>(p.offset) * 0x01010101u;  // adding 128 to a byte flips its top bit
        std::memcpy(p.data + group_at<kInt8Groups>(0, b, j) + 4 * r, &word, 4);
      }
    }
  }
  return Fault::kNone;
}

// Elements of a type without scales, kCols columns at a time. kExponent: the bits of a number that is none.
template <typename Word, auto kEncode, Word kExponent, int kCols>
Fault pack_plain(const PanelTask& p) {
  constexpr int kBytes = kCols * sizeof(Word);
  for (int r = 0; r < p.rows; ++r) {
    read_row(p.m, p.first + r, p.values);
    for (int64_t c = 0; c < p.m.cols; ++c) {
      if (!std::isfinite(p.values[c])) return Fault::kNotFinite;
      const Word word = kEncode(p.values[c]);
      if ((word & kExponent) == kExponent) return Fault::kTooLarge;
      std::memcpy(group(p.data, c / kCols, kPanel * kBytes) + r * kBytes + c % kCols * sizeof(Word), &word,
                  sizeof word);
    }
  }
  return Fault::kNone;
}

// BF16 as it stands, two columns at a time.
Fault pack_bf16(const PanelTask& p) {
  if (p.m.format != Format::kBF16 || p.m.col_stride != 2)
    return pack_plain<uint16_t, mx::encode_bf16, 0x7F80, 2>(p);
  for (int r = 0; r < p.rows; ++r) {
    const std::byte* row = p.m.data + (p.first + r) * p.m.row_stride;
    for (int64_t c = 0; c < p.m.cols; c += 2) {
      uint32_t pair;
      std::memcpy(&pair, row + c * 2, 4);
      if ((pair & 0x7F80u) == 0x7F80u || (pair & 0x7F800000u) == 0x7F800000u) return Fault::kNotFinite;
      std::memcpy(group(p.data, c / 2, kPanel * 4) + 4 * r, &pair, 4);
    }
  }
  return Fault::kNone;
}

Fault pack_mxfp8(const PanelTask& p) {
  const int64_t blocks = p.m.cols / mx::kBlock;
  fill_scales(p.scales, blocks);
  std::vector<std::byte> codes(static_cast<size_t>(p.m.cols)), scales(static_cast<size_t>(blocks));
  for (int r = 0; r < p.rows; ++r) {
    convert_row(p.m, p.first + r, Format::kMxfp8, p.values, codes.data(), scales.data());
    for (int64_t b = 0; b < blocks; ++b) {
      const auto scale = std::to_integer<uint8_t>(scales[b]);
      if (scale == mx::kScaleNan) return Fault::kNanScale;
      if (scale > kHighScale) return Fault::kHugeScale;
      group(p.scales, b, kPanel)[r] = std::max<uint8_t>(scale, 1);
      for (int i = 0; i < mx::kBlock; ++i) {
        const auto code = std::to_integer<uint8_t>(codes[b * mx::kBlock + i]);
        if ((code & 0x7F) == 0x7F) return Fault::kNotFinite;
        group(p.data, b * mx::kBlock + i, kPanel)[r] = scale < 1 ? uint8_t{0} : code;
      }
    }
  }
  return Fault::kNone;
}

// The packing of a stored format: the format that it becomes, a panel's groups of weights and its scales for
// a block of columns (kernels.h draws both), and the activations that it meets.
struct PackTraits {
  Format format, packed;
  int group_cols, group_bytes, scale_bytes;
  Act act;
  Fault (*pack)(const PanelTask& task);
};
constexpr PackTraits kPacks[] = {
    {Format::kF32, Format::kF32, 1, kPanel * 4, 0, Act::kF32,
     pack_plain<uint32_t, mx::float_bits, 0x7F800000, 1>},
    {Format::kF16, Format::kF16, 1, kPanel * 2, 0, Act::kF32,
     pack_plain<uint16_t, mx::encode_f16, 0x7C00, 1>},
    {Format::kBF16, Format::kBF16, 2, kPanel * 4, 0, Act::kBF16, pack_bf16},
    {Format::kQ8_0, Format::kQ8_0, mx::kBlock / kInt8Groups, 64, kPanel * 2, Act::kInt8, pack_int8},
    {Format::kMxfp4, Format::kMxfp4, mx::kBlock / kMxfp4Groups, 64, kPanel, Act::kInt8, pack_mxfp4},
    {Format::kMxfp4Gguf, Format::kMxfp4, mx::kBlock / kMxfp4Groups, 64, kPanel, Act::kInt8, pack_mxfp4},
    {Format::kMxfp8, Format::kMxfp8, 1, kPanel, kPanel, Act::kF32, pack_mxfp8},
};
static_assert(in_order(kPacks), "one row for each format");
const PackTraits& traits_of(Format format) { return kPacks[static_cast<size_t>(format)]; }

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

Format packed_format(Format format, std::optional<Format> wanted) {
  return traits_of(made_of(format, wanted)).packed;
}

Act act_format(Format packed, const Kernels& kernels) {
  return packed == Format::kMxfp4 ? kernels.mxfp4_act : traits_of(packed).act;
}

std::vector<PanelSource> alternating_panels(std::span<const MatrixView> matrices, size_t group) {
  std::vector<PanelSource> panels;
  for (size_t first = 0; first < matrices.size(); first += group) {
    for (int64_t row = 0; row < matrices[first].rows; row += kPanel) {
      for (size_t i = 0; i < group; ++i) panels.push_back({&matrices[first + i], row});
    }
  }
  return panels;
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

Result<PackedMatrix> empty_panels(Format format, int64_t cols, int64_t panels, ThreadPool& pool,
                                  int64_t sections) {
  const PackTraits& traits = traits_of(format);
  PackedMatrix packed{.format = format,
                      .cols = cols,
                      .panels = panels,
                      .data_stride = kPair * (cols / traits.group_cols) * traits.group_bytes,
                      .scale_stride = kPair * (cols / mx::kBlock) * traits.scale_bytes,
                      .sections = sections};
  const int64_t pairs = packed.pairs() / sections;  // pairs of a section
  MOESAIC_CHECK(pairs * sections == packed.pairs());
  for (int node = 0; node <= pool.nodes(); ++node) packed.node_begins.push_back(pool.node_begin(pairs, node));
  ASSIGN_OR_RETURN(packed.data, Buffer::allocate(packed.pairs() * packed.data_stride));
  ASSIGN_OR_RETURN(packed.scales, Buffer::allocate(packed.pairs() * packed.scale_stride));
  return packed;
}

Status pack_sections(const PackedMatrix& packed, std::span<const int> to,
                     std::span<const PanelSource> sources, const std::string& name, const Kernels& kernels,
                     ThreadPool& pool) {
  const PackTraits& traits = traits_of(packed.format);
  const int64_t pairs = packed.pairs() / packed.sections;
  MOESAIC_CHECK(std::ssize(sources) == std::ssize(to) * pairs * kPair);
  std::vector<std::vector<float>> staging(pool.threads(), std::vector<float>(packed.cols));
  std::atomic<int> fault{0};
  for_each_pair(pool, std::ssize(to), pairs, {}, [&](int64_t section, int64_t at, int thread) {
    const int64_t slot = packed.slot(to[section] * pairs + at);
    for (int64_t panel = 0; panel < kPair; ++panel) {
      const auto& [m, first] = sources[kPair * (section * pairs + at) + panel];
      const Fault f = traits.pack(
          {.m = *m,
           .first = first,
           .rows = static_cast<int>(std::min<int64_t>(kPanel, m->rows - first)),
           .offset = kernels.weight_offset,
           .values = staging[thread],
           .data = packed.data.as<uint8_t>() + slot * packed.data_stride + panel * traits.group_bytes,
           .scales = packed.scales.as<uint8_t>() + slot * packed.scale_stride + panel * traits.scale_bytes});
      if (f != Fault::kNone) fault.store(static_cast<int>(f), std::memory_order_relaxed);
    }
  });
  return explain(static_cast<Fault>(fault.load()), name);
}

Result<PackedMatrix> pack_panels(Format format, int64_t cols, std::vector<PanelSource> sources,
                                 const std::string& name, const Kernels& kernels, ThreadPool& pool,
                                 int64_t sections) {
  ASSIGN_OR_RETURN(PackedMatrix packed, empty_panels(format, cols, std::ssize(sources), pool, sections));
  if (packed.panels % kPair != 0) sources.push_back({sources.back().source, sources.back().source->rows});
  std::vector<int> all(static_cast<size_t>(sections));
  std::iota(all.begin(), all.end(), 0);
  RETURN_IF_ERROR(pack_sections(packed, all, sources, name, kernels, pool));
  return packed;
}

}  // namespace moesaic::cpu
