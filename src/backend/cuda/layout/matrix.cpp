#include "backend/cuda/layout/matrix.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/layout/quad_layout.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

// Kinds of a stored format: of weight tiles, and where products are block-scaled. F32 is rounded.
struct FormatKinds {
  Format format;
  Kind kind, block_scaled;
};
constexpr FormatKinds kFormatKinds[] = {
    {Format::kF32, Kind::kBF16, Kind::kBF16},          {Format::kF16, Kind::kF16, Kind::kF16},
    {Format::kBF16, Kind::kBF16, Kind::kBF16},         {Format::kQ8_0, Kind::kQ8_0, Kind::kQ8_0},
    {Format::kMxfp4, Kind::kMxfp4, Kind::kMxfp4Quads}, {Format::kMxfp4Gguf, Kind::kMxfp4, Kind::kMxfp4Quads},
    {Format::kMxfp8, Kind::kMxfp8, Kind::kMxfp8Quads},
};
static_assert(in_order(kFormatKinds), "one row for each format");

// A weight tile's block of 32 columns: bytes of its data and of its scales (of quads layout/quad_layout.h).
struct KindTraits {
  Kind kind;
  Format format;
  int bytes, scale_bytes;
};
constexpr KindTraits kKinds[] = {
    {Kind::kBF16, Format::kBF16, 2048, 0},     {Kind::kF16, Format::kF16, 2048, 0},
    {Kind::kQ8_0, Format::kQ8_0, 1024, 64},    {Kind::kMxfp8, Format::kMxfp8, 1024, 32},
    {Kind::kMxfp4, Format::kMxfp4, 512, 32},   {Kind::kMxfp4Quads, Format::kMxfp4, 0, 0},
    {Kind::kMxfp8Quads, Format::kMxfp8, 0, 0},
};
constexpr bool in_order(std::span<const KindTraits> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].kind != Kind{static_cast<uint8_t>(i)}) return false;
  }
  return rows.size() == static_cast<size_t>(Kind::kCount);
}
static_assert(in_order(std::span<const KindTraits>(kKinds)), "one row for each kind");
const KindTraits& traits_of(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

}  // namespace

std::string_view kind_name(Kind kind) { return format_name(traits_of(kind).format); }

bool in_weight_tiles(Kind kind) { return traits_of(kind).bytes > 0; }
bool in_wide_tiles(Kind kind) { return traits_of(kind).bytes >= kWeightTileRows * kBlock; }

int64_t Matrix::weight_tile_bytes() const {
  using sm120::Element;
  if (in_quads(kind))
    return sm120::weight_tile_bytes(kind == Kind::kMxfp4Quads ? Element::kE2M1 : Element::kE4M3,
                                    static_cast<int>(cols / kBlock));
  return cols / kBlock * traits_of(kind).bytes;
}
int64_t Matrix::weight_tile_scale_bytes() const { return cols / kBlock * traits_of(kind).scale_bytes; }

Kind kind_of(Format format, std::optional<Format> wanted, bool block_scaled) {
  const FormatKinds& kinds = kFormatKinds[static_cast<size_t>(made_of(format, wanted))];
  return block_scaled ? kinds.block_scaled : kinds.kind;
}

Status no_kernel(const char* op, const Matrix& w, int tokens) {
  return error(StatusCode::kInternal, "cuda: {} has no kernel for {} weights{}, {} x {}, {} tokens", op,
               kind_name(w.kind), in_quads(w.kind) ? " in quads" : "", w.rows, w.cols, tokens);
}

float f16_factor(int width, float largest_weight) {
  const double bound = std::sqrt(static_cast<double>(width)) * std::max(largest_weight, 1e-30f);
  return static_cast<float>(std::exp2(std::floor(std::log2(32768.0 / bound))));
}

}  // namespace moesaic::cuda
