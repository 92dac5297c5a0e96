// The arithmetic that every op is made of: float32 values, double accumulation, one fixed order per output
// element, so that a row's result does not depend on which other rows share the batch.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/weights.h"

namespace moesaic::reference {

// sum of a[i] * b[i]; a and b have the same size.
double dot(std::span<const float> a, std::span<const float> b);

// y = x / sqrt(mean(x^2) + eps) * scale
void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y);

// Row r of m, decoded.
std::vector<float> read_vector(const MatrixView& m, int64_t r = 0);

// y[t] = w x[t] + bias.  x: [rows, w.cols], bias: [w.rows] or empty, y: [rows, w.rows]
void linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x, std::span<float> y);

// What a device keeps of the values that its products meet. MX: blocks of 32 (mx/block.h).
void round_to_bf16(std::span<float> x);
void round_to_mxfp8(std::span<float> x);
void round_to_mxfp4(std::span<float> x);

// What the attention projections and lm_head are made of. weights: what rows are rounded to, as
// BackendOptions::dense says; atom: where they are MXFP4 or MXFP8 then, or were stored so, x is rounded to
// BF16 and that to MXFP8.
struct DenseRounding {
  DenseFormat weights = DenseFormat::kAsLoaded;
  bool atom = false;
};
// linear() so.
void dense_linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x,
                  std::span<float> y, const DenseRounding& rounding);

bool all_finite(std::span<const float> x);

}  // namespace moesaic::reference
