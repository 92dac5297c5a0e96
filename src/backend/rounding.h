// Rounds the activations of a product on MoePath::kW4A8 and kW4A8x2: the rule of the backends that compute
// on the host. kernels/sm120/quantize.cuh is the same for a device.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/backend.h"

namespace moesaic {

// A product's activations: those of the attention projections and lm_head; of gate and up; SwiGLU's result.
enum class Operand { kDense, kExpertInput, kSwiglu };

// Formats, one after the other; F32 rounds nothing. parts: of so many values of the second format a value is
// the sum, each being what those before it left.
struct Rounding {
  Format first = Format::kF32, then = Format::kF32;
  int parts = 1;
  bool rounds() const { return then != Format::kF32; }
  void apply(std::span<float> x) const {
    round_to(first, x);
    if (parts == 1) return round_to(then, x);
    std::vector<float> part, rest(x.begin(), x.end());
    std::ranges::fill(x, 0.0f);
    for (int i = 0; i < parts; ++i) {
      part = rest;
      round_to(then, part);
      for (size_t at = 0; at < x.size(); ++at) x[at] += part[at], rest[at] -= part[at];
    }
  }
};

// Before they meet weights that memory holds so. What comes from a norm or attention is BF16 on a device.
inline Rounding rounding_of(MoePath path, Operand operand, Format weights) {
  const bool rounds = is_mxfp4(weights) || (operand == Operand::kDense && is_mx(weights));
  if (!is_w4a8(path) || !rounds) return {};
  return {.first = operand == Operand::kSwiglu ? Format::kF32 : Format::kBF16,
          .then = Format::kMxfp8,
          .parts = mxfp8_parts(path)};
}

// The format whose elements such activations have on a device; F32: they are not rounded. kFp8 has MXFP8's
// elements without its scales, by a rule that no host has.
inline Format activation_format(MoePath path, Operand operand, Format weights) {
  if (path != MoePath::kFp8) return rounding_of(path, operand, weights).then;
  return operand != Operand::kDense && is_mxfp4(weights) ? Format::kMxfp8 : Format::kF32;
}

}  // namespace moesaic
