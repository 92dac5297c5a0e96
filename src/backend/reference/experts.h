// The mixture of experts of one layer.
#pragma once

#include <span>

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic::reference {

// out += sum over the row's top-k experts of p_k (down(swiglu(gate(x), up(x)))).
// x: normed activations [rows, hidden]; out: the residual, same shape.
void add_experts(const ModelConfig& config, const LayerWeights& w, std::span<const float> x,
                 std::span<float> out);

// gate is clamped from above, up from both sides: a = gate * sigmoid(alpha * gate) * (up + 1)
float swiglu(float gate, float up, double alpha, double limit);

}  // namespace moesaic::reference
