// The arithmetic that every op is made of: float32 values, double accumulation, one fixed order per output
// element, so that a row's result does not depend on which other rows share the batch.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/rounding.h"
#include "core/weights.h"

namespace moesaic::reference {

// sum of a[i] * b[i]; a and b have the same size.
double dot(std::span<const float> a, std::span<const float> b);

// y = x / sqrt(mean(x^2) + eps) * scale
void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y);

// x [.., scale's size], each row normed.
std::vector<float> normed(std::span<const float> x, std::span<const float> scale, double eps);

// Row r of m, decoded; empty where m has no data.
std::vector<float> read_vector(const MatrixView& m, int64_t r = 0);

// y[t] = w x[t] + bias.  x: [rows, w.cols], bias: [w.rows] or empty, y: [rows, w.rows]
void linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x, std::span<float> y);

// The formats that values are rounded to: `dense` matrices and K and V in the cache, as backend.h has them;
// activations as backend/rounding.h says.
struct Precision {
  std::optional<Format> dense = {};
  MoePath moe_path = MoePath::kAuto;
  KvFormat kv = KvFormat::kOwn;
};

// linear() of the attention projections, lm_head and dense MLPs: rows of w and x are rounded first.
void dense_linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x,
                  std::span<float> y, const Precision& precision, Operand operand = Operand::kDense);

// y[t] += rows [first_row, first_row + n) of low.up times (low.down x[t]).  x: [rows, low.down.cols], y:
// [rows, n]
void add_low_rank(const LowRank& low, int64_t first_row, std::span<const float> x, std::span<float> y);

// The columns `mine` that this rank has made, with those of the others beside them: [rows, width].
std::vector<float> gather(const RankPlace& rank, std::vector<float> part, Range mine, int64_t width);

}  // namespace moesaic::reference
