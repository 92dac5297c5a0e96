// What the activations of a product are rounded to on MoePath::kAtom, kW4A16 and kW4A4: the rule of the
// backends that compute on the host. kernels/sm120/quantize.cuh is the same for a device.
#pragma once

#include "backend/backend.h"
#include "core/rounding.h"

namespace moesaic {

// A product's activations: those of the attention projections and lm_head; of gate and up; SwiGLU's result.
enum class Operand { kDense, kExpertInput, kSwiglu };

// Formats, one after the other; F32 rounds nothing.
struct Rounding {
  Format first = Format::kF32, then = Format::kF32;
  bool rounds() const { return then != Format::kF32; }
  void apply(std::span<float> x) const { round_to(first, x), round_to(then, x); }
};

// Before they meet weights that memory holds so. What comes from a norm or attention is BF16 on a device.
inline Rounding rounding_of(const MoeOptions& moe, Operand operand, Format weights) {
  const bool dense = operand == Operand::kDense, fp8 = dense && weights == Format::kMxfp8;
  if (moe.path == MoePath::kAuto || !(is_mxfp4(weights) || fp8)) return {};
  if (dense && moe.path != MoePath::kAtom) return {};
  const bool of_bf16 = operand != Operand::kSwiglu || moe.separate_quantise;
  return {.first = of_bf16 ? Format::kBF16 : Format::kF32,
          .then = moe.path == MoePath::kAtom    ? Format::kMxfp8
                  : moe.path == MoePath::kW4A16 ? Format::kBF16
                                                : Format::kMxfp4};
}

}  // namespace moesaic
