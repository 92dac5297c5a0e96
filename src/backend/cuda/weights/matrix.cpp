#include "backend/cuda/weights/matrix.h"

#include "backend/cuda/weights/quad_layout.h"

namespace moesaic::cuda {
const char* kind_name(Kind kind) {
  constexpr const char* kNames[] = {"bf16", "f16", "q8_0", "mxfp8", "mxfp4", "mxfp4", "mxfp8"};
  return kNames[static_cast<int>(kind)];
}

int64_t Matrix::weight_tile_bytes() const {
  using sm120::Element;
  if (in_quads(kind))
    return sm120::weight_tile_bytes(kind == Kind::kMxfp4Quads ? Element::kE2M1 : Element::kE4M3,
                                    static_cast<int>(cols / kBlock));
  constexpr int64_t kBytes[] = {2048, 2048, 1024, 1024, 512};
  return cols / kBlock * kBytes[static_cast<int>(kind)];
}
int64_t Matrix::weight_tile_scale_bytes() const {
  constexpr int64_t kBytes[] = {0, 0, 64, 32, 32, 0, 0};
  return cols / kBlock * kBytes[static_cast<int>(kind)];
}

namespace {

Kind plain_kind(Format format, DenseFormat wanted) {
  if (is_mxfp4(format)) return Kind::kMxfp4;
  switch (wanted) {
    case DenseFormat::kBF16:
      return Kind::kBF16;
    case DenseFormat::kQ8_0:
      return Kind::kQ8_0;
    case DenseFormat::kMxfp8:
      return Kind::kMxfp8;
    case DenseFormat::kMxfp4:
      return Kind::kMxfp4;
    case DenseFormat::kAsLoaded:
      break;
  }
  switch (format) {
    case Format::kF16:
      return Kind::kF16;
    case Format::kQ8_0:
      return Kind::kQ8_0;
    case Format::kMxfp8:
      return Kind::kMxfp8;
    default:
      return Kind::kBF16;
  }
}

}  // namespace

Kind kind_of(Format format, DenseFormat wanted, bool block_scaled) {
  const Kind kind = plain_kind(format, wanted);
  if (!block_scaled) return kind;
  if (kind == Kind::kMxfp4) return Kind::kMxfp4Quads;
  return kind == Kind::kMxfp8 ? Kind::kMxfp8Quads : kind;
}

}  // namespace moesaic::cuda
