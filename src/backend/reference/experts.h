// The mixture of experts of one layer.
#pragma once

#include <functional>
#include <span>

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic::reference {

using RouterSeen = std::function<void(int row, std::span<const float> logits)>;

// What a product of MXFP4 experts is given: F32, or what is left of it after BF16 (the input only) and MXFP8
// (mx/block.h), or after BF16 and MXFP8 in both products, or after BF16 (the input only) and MXFP4. Other
// formats' experts: F32.
enum class ExpertActivations { kF32, kMxfp8, kMxfp8OfBf16, kMxfp4 };

// out += sum over the row's top-k experts of p_k (down(swiglu(gate(x), up(x)))).
// x: normed activations [rows, hidden]; out: the residual, same shape. seen, if any, is shown each row's
// router logits.
void add_experts(const ModelConfig& config, const LayerWeights& w, std::span<const float> x,
                 std::span<float> out, const RouterSeen& seen,
                 ExpertActivations activations = ExpertActivations::kF32);

// gate is clamped from above, up from both sides: a = gate * sigmoid(alpha * gate) * (up + 1)
float swiglu(float gate, float up, double alpha, double limit);

}  // namespace moesaic::reference
