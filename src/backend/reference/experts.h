// The mixture of experts of one layer.
#pragma once

#include <functional>
#include <span>

#include "backend/backend.h"
#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic::reference {

using RouterSeen = std::function<void(int row, std::span<const float> logits)>;

// out += sum over the row's top-k experts of p_k (down(swiglu(gate(x), up(x)))).
// x: normed activations [rows, hidden]; out: the residual, same shape. seen, if any, is shown each row's
// router logits. moe_path says what the products' activations are rounded to (backend/rounding.h).
void add_experts(const ModelConfig& config, const LayerWeights& w, const LayerAdapter& adapter,
                 std::span<const float> x, std::span<float> out, const RouterSeen& seen,
                 MoePath moe_path = MoePath::kAuto);

// gate is clamped from above, up from both sides: a = gate * sigmoid(alpha * gate) * (up + 1)
float swiglu(float gate, float up, double alpha, double limit);

}  // namespace moesaic::reference
