// The MLP of one layer: a mixture of experts, or a dense one.
#pragma once

#include <functional>
#include <span>

#include "backend/reference/linear.h"
#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic::reference {

using RouterSeen = std::function<void(int row, std::span<const float> logits)>;

// out += sum over the row's top-k experts of p_k (down(swiglu(gate(x), up(x)))), or += that of a dense MLP.
// x: normed activations [rows, hidden]; out: the residual, same shape. seen, if any, is shown each row's
// router logits. The shape and the weights are those of the rank.
void add_mlp(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
             std::span<const float> x, std::span<float> out, const Precision& precision,
             const RouterSeen& seen = nullptr, const RankPlace& rank = {});

// gate is clamped from above, up from both sides: a = gate * sigmoid(alpha * gate) * (up + offset)
float swiglu(float gate, float up, double alpha, double limit, double offset = 1);

}  // namespace moesaic::reference
