#include "backend/reference/linear.h"

#include <algorithm>
#include <cmath>

#include "core/q8_0.h"
#include "mx/block.h"

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

std::vector<float> read_vector(const MatrixView& m, int64_t r) {
  std::vector<float> row(static_cast<size_t>(m.cols));
  read_row(m, r, row);
  return row;
}

namespace {

void round_to_q8_0(std::span<float> x) {
  for (size_t i = 0; i < x.size(); i += mx::kBlock) {
    int8_t q[mx::kBlock];
    const float scale = mx::decode_f16(quantize_q8_0(x.data() + i, q));
    for (size_t j = 0; j < mx::kBlock; ++j) x[i + j] = scale * q[j];
  }
}
void round_to(Format format, std::span<float> x) {
  switch (format) {
    case Format::kBF16:
      return round_to_bf16(x);
    case Format::kQ8_0:
      return round_to_q8_0(x);
    case Format::kMxfp8:
      return round_to_mxfp8(x);
    case Format::kMxfp4:
      return round_to_mxfp4(x);
    default:
      return;
  }
}

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

void round_to_bf16(std::span<float> x) {
  for (float& v : x) v = mx::decode_bf16(mx::encode_bf16(v));
}
void round_to_mxfp8(std::span<float> x) {
  for (size_t i = 0; i < x.size(); i += mx::kBlock) {
    uint8_t codes[mx::kBlock];
    const uint8_t scale = mx::quantize_mxfp8(x.data() + i, codes);
    mx::dequantize_mxfp8(codes, scale, x.data() + i);
  }
}

void round_to_mxfp4(std::span<float> x) {
  for (size_t i = 0; i < x.size(); i += mx::kBlock) {
    uint8_t codes[mx::kPackedBlock];
    const uint8_t scale = mx::quantize_mxfp4(x.data() + i, codes);
    mx::dequantize_mxfp4(codes, scale, x.data() + i);
  }
}
void dense_linear(const MatrixView& w, std::span<const float> bias, std::span<const float> x,
                  std::span<float> y, const DenseRounding& rounding) {
  const Format made = made_of(w.format, rounding.weights);
  if (!rounding.atom || !(is_mxfp4(made) || made == Format::kMxfp8))
    return rounded_linear(w, bias, x, y, made);
  std::vector<float> kept(x.begin(), x.end());
  round_to_bf16(kept), round_to_mxfp8(kept);
  rounded_linear(w, bias, kept, y, made);
}

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace moesaic::reference
