#include "backend/reference/experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/linear.h"
#include "moe/work_list.h"

namespace moesaic::reference {
namespace {

std::vector<float> rows_of(std::span<const float> x, size_t cols, std::span<const int32_t> rows) {
  std::vector<float> out;
  for (const int32_t row : rows) {
    const auto source = x.subspan(static_cast<size_t>(row) * cols, cols);
    out.insert(out.end(), source.begin(), source.end());
  }
  return out;
}

// An adapter's addition to gate and up: rows of both alternate.
void add_gate_up(const LowRank& low, std::span<const float> x, std::span<float> gate, std::span<float> up) {
  LowRank half = low;
  half.up = slice_rows(low.up, 0, low.up.rows / 2, 2);
  add_low_rank(half, 0, x, gate);
  half.up = slice_rows(low.up, 1, low.up.rows / 2, 2);
  add_low_rank(half, 0, x, up);
}

// One expert, or a dense MLP, over its rows x: [rows, hidden] -> [rows, hidden]. Experts keep their format.
std::vector<float> run_expert(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
                              int32_t expert, std::span<const float> x, Precision precision,
                              const RankPlace& rank) {
  if (shape.experts > 0) precision.dense = {};
  const size_t rows = x.size() / static_cast<size_t>(shape.hidden);
  const int64_t intermediate = w.down.first.cols, hidden = shape.hidden;  // all ranks' together
  std::vector<float> gate(rows * static_cast<size_t>(shape.intermediate)), up(gate.size()),
      out(rows * static_cast<size_t>(w.down.first.rows));
  const auto product = [&](const ExpertsView& m, const MatrixView& bias, std::span<const float> from,
                           std::vector<float>& to, Operand operand) {
    dense_linear(m.at(expert), read_vector(bias, expert), from, to, precision, operand);
  };
  product(w.gate, w.gate_bias, x, gate, Operand::kExpertInput);
  product(w.up, w.up_bias, x, up, Operand::kExpertInput);
  if (!adapter.gate_up.empty()) add_gate_up(adapter.gate_up.at(expert), x, gate, up);
  for (size_t i = 0; i < gate.size(); ++i)
    gate[i] = swiglu(gate[i], up[i], shape.swiglu_alpha, shape.swiglu_limit, shape.swiglu_offset);
  gate = gather(rank, std::move(gate), rank.share.rows(intermediate), intermediate);
  product(w.down, w.down_bias, gate, out, Operand::kSwiglu);
  if (!adapter.down.empty()) add_low_rank(adapter.down.at(expert), 0, gate, out);
  return gather(rank, std::move(out), rank.share.rows(hidden), hidden);
}

struct Routing {
  std::vector<int32_t> ids;    // [rows, top_k]
  std::vector<float> weights;  // [rows, top_k]
};

Routing route(const LayerShape& shape, const LayerWeights& w, std::span<const float> x,
              const RouterSeen& seen) {
  const size_t rows = x.size() / static_cast<size_t>(shape.hidden);
  const auto experts = static_cast<size_t>(shape.experts);
  const auto top_k = static_cast<size_t>(shape.experts_per_token);
  std::vector<float> logits(rows * experts);
  linear(w.router, read_vector(w.router_bias), x, logits);
  Routing r{std::vector<int32_t>(rows * top_k), std::vector<float>(rows * top_k)};
  for (size_t t = 0; t < rows; ++t) {
    const std::span<const float> row = std::span(logits).subspan(t * experts, experts);
    if (seen) seen(static_cast<int>(t), row);
    route_row(row, shape.experts_per_token, r.ids.data() + t * top_k, r.weights.data() + t * top_k);
  }
  return r;
}

}  // namespace

float swiglu(float gate, float up, double alpha, double limit, double offset) {
  // Written so that a NaN stays a NaN, which std::clamp would also do and std::min would not.
  const double g = gate > limit ? limit : gate, u = std::clamp<double>(up, -limit, limit);
  return static_cast<float>(g / (1.0 + std::exp(-alpha * g)) * (u + offset));
}

void add_mlp(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
             std::span<const float> x, std::span<float> out, const Precision& precision,
             const RouterSeen& seen, const RankPlace& rank) {
  if (shape.experts == 0) {
    const std::vector<float> y = run_expert(shape, w, adapter, 0, x, precision, rank);
    for (size_t i = 0; i < out.size(); ++i) out[i] += y[i];
    return;
  }
  const Routing routing = route(shape, w, x, seen);
  WorkList work;
  build_work_list(routing.ids, shape.experts_per_token, shape.experts, work);
  const auto hidden = static_cast<size_t>(shape.hidden);
  std::vector<float> outputs;  // [rows * top_k, hidden], in the order of the work list
  for (const int32_t expert : work.active) {
    const auto first = static_cast<size_t>(work.offsets[static_cast<size_t>(expert)]);
    const auto last = static_cast<size_t>(work.offsets[static_cast<size_t>(expert) + 1]);
    const auto rows = std::span<const int32_t>(work.rows).subspan(first, last - first);
    const std::vector<float> y =
        run_expert(shape, w, adapter, expert, rows_of(x, hidden, rows), precision, rank);
    outputs.insert(outputs.end(), y.begin(), y.end());
  }
  const auto top_k = static_cast<size_t>(shape.experts_per_token);
  for (size_t i = 0; i < out.size(); ++i) {
    double sum = out[i];
    for (size_t pair = i / hidden * top_k; pair < (i / hidden + 1) * top_k; ++pair)
      sum += double{routing.weights[pair]} *
             outputs[static_cast<size_t>(work.permuted_rows[pair]) * hidden + i % hidden];
    out[i] = static_cast<float>(sum);
  }
}

}  // namespace moesaic::reference
