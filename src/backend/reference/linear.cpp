#include "backend/reference/linear.h"

#include <cmath>

namespace moesaic::reference {

double dot(std::span<const float> a, std::span<const float> b) {
  // Eight independent chains hide the latency of the additions; the order stays fixed.
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= a.size(); i += 8) {
    for (size_t l = 0; l < 8; ++l) lanes[l] += double{a[i + l]} * double{b[i + l]};
  }
  double sum = 0;
  for (; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  for (const double lane : lanes) sum += lane;
  return sum;
}

void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y) {
  const double factor = 1.0 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] * factor * scale[i]);
}

std::vector<float> normed(std::span<const float> x, std::span<const float> scale, double eps) {
  std::vector<float> y(x.size());
  // GGUF keeps eps as a float, config.json as decimal digits: the float is what both mean.
  for (size_t i = 0; i < x.size(); i += scale.size())
    rms_norm(x.subspan(i, scale.size()), scale, static_cast<float>(eps),
             std::span(y).subspan(i, scale.size()));
  return y;
}

std::vector<float> read_vector(const MatrixView& m, int64_t r) {
  if (m.data == nullptr) return {};
  std::vector<float> row(static_cast<size_t>(m.cols));
  read_row(m, r, row);
  return row;
}

namespace {

void rounded_linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x,
                    std::span<float> y, Format made) {
  const auto cols = static_cast<size_t>(w.cols), outputs = static_cast<size_t>(w.rows);
  std::vector<float> row(cols);
  for (size_t r = 0; r < outputs; ++r) {
    read_row(w, static_cast<int64_t>(r), row);
    if (made != w.format) round_to(made, row);
    for (size_t t = 0; t < x.size() / cols; ++t) {
      const double b = bias.empty() ? 0.0 : bias[r];
      y[t * outputs + r] = static_cast<float>(dot(row, x.subspan(t * cols, cols)) + b);
    }
  }
}

}  // namespace

void linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x, std::span<float> y) {
  rounded_linear(w, bias, x, y, w.format);
}

void dense_linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x,
                  std::span<float> y, const Precision& precision, Operand operand) {
  const Format made = made_of(w.format, precision.dense);
  const Rounding rounding = rounding_of(precision.moe_path, operand, made);
  if (!rounding.rounds()) return rounded_linear(w, bias, x, y, made);
  std::vector<float> kept(x.begin(), x.end());
  rounding.apply(kept);
  rounded_linear(w, bias, kept, y, made);
}

void add_low_rank(const LowRank& low, int64_t first_row, std::span<const float> x, std::span<float> y) {
  const size_t rows = x.size() / static_cast<size_t>(low.down.cols), n = y.size() / rows;
  std::vector<float> between(rows * static_cast<size_t>(low.down.rows)), more(y.size());
  linear(low.down, {}, x, between);
  linear(slice_rows(low.up, first_row, static_cast<int64_t>(n)), {}, between, more);
  for (size_t i = 0; i < y.size(); ++i) y[i] += more[i];
}

std::vector<float> gather(const RankPlace& rank, std::vector<float> part, Range mine, int64_t width) {
  if (rank.alone()) return part;
  const int64_t rows = std::ssize(part) / mine.count;
  std::vector<float> whole(static_cast<size_t>(rows * width));
  rank.exchange->gather(rank.share.rank, {part.data(), mine.count, rows, mine}, whole.data(), width);
  return whole;
}

}  // namespace moesaic::reference
