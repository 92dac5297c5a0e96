#include "backend/cuda/layout/matrix.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/layout/quad_layout.h"
#include "base/error.h"

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

// By Format. F32 is rounded.
constexpr Kind kKinds[] = {Kind::kBF16,  Kind::kF16,   Kind::kBF16, Kind::kQ8_0,
                           Kind::kMxfp4, Kind::kMxfp4, Kind::kMxfp8};

}  // namespace

Kind kind_of(Format format, std::optional<Format> wanted, bool block_scaled) {
  const Kind kind = kKinds[static_cast<size_t>(made_of(format, wanted))];
  if (!block_scaled) return kind;
  if (kind == Kind::kMxfp4) return Kind::kMxfp4Quads;
  return kind == Kind::kMxfp8 ? Kind::kMxfp8Quads : kind;
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
