#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "core/tensor_name.h"
#include "core/weights.h"
#include "mx/block.h"

namespace moesaic {
namespace {

constexpr int16_t kF16Exponent = 0x7C00, kBF16Exponent = 0x7F80;
constexpr int32_t kF32Exponent = 0x7F800000;

template <typename Word>
Word load(const std::byte* p) {
  Word value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

bool finite16(const std::byte* p, int16_t exponent) { return (load<int16_t>(p) & exponent) != exponent; }

// Infinity and NaN have the largest magnitudes, which are not negative as signed integers. The loop over
// elements that lie side by side is one that compilers vectorise.
template <typename Int>
bool plain_finite(const MatrixView& m, const std::byte* row, Int exponent) {
  constexpr Int kMagnitude = std::numeric_limits<Int>::max();
  Int top = 0;
  const auto add = [&](const std::byte* p) {
    const auto magnitude = static_cast<Int>(load<Int>(p) & kMagnitude);
    top = magnitude > top ? magnitude : top;
  };
  if (m.col_stride == sizeof(Int)) {
    for (int64_t c = 0; c < m.cols; ++c) add(row + c * static_cast<int64_t>(sizeof(Int)));
  } else {
    for (int64_t c = 0; c < m.cols; ++c) add(row + c * m.col_stride);
  }
  return top < exponent;
}

bool mxfp8_finite(const std::byte* codes, std::byte scale) {
  if (std::to_integer<uint8_t>(scale) == mx::kScaleNan) return false;
  for (int i = 0; i < mx::kBlock; ++i) {
    if ((std::to_integer<uint8_t>(codes[i]) & 0x7F) == 0x7F) return false;
  }
  return true;
}

bool block_finite(const MatrixView& m, const std::byte* row, const std::byte* scales, int64_t b) {
  switch (m.format) {
    case Format::kQ8_0:
      return finite16(row + b * row_bytes(m.format, mx::kBlock), kF16Exponent);
    case Format::kMxfp4Gguf:
      return std::to_integer<uint8_t>(row[b * row_bytes(m.format, mx::kBlock)]) != mx::kScaleNan;
    case Format::kMxfp4:
      MOESAIC_CHECK(scales != nullptr);
      return std::to_integer<uint8_t>(scales[b]) != mx::kScaleNan;
    default:
      MOESAIC_CHECK(scales != nullptr);
      return mxfp8_finite(row + b * mx::kBlock, scales[b]);
  }
}

Status not_finite(const std::string& name, int64_t row) {
  return invalid("{} row {}: NaN or infinity; the checkpoint is damaged", name, row);
}

Status check_matrix(int layer, const char* name, const MatrixView& m) {
  for (int64_t r = 0; r < m.rows; ++r)
    if (!row_is_finite(m, r)) return not_finite(tensor_name(layer, name), r);
  return {};
}
Status check_experts(int layer, const char* name, const ExpertsView& experts) {
  for (int64_t e = 0; e < experts.count; ++e) RETURN_IF_ERROR(check_matrix(layer, name, experts.at(e)));
  return {};
}

Status check_layer(int layer, const LayerWeights& w) {
  const std::pair<const char*, const MatrixView*> matrices[] = {{"attn_norm", &w.attn_norm},
                                                                {"q", &w.q},
                                                                {"k", &w.k},
                                                                {"v", &w.v},
                                                                {"q bias", &w.q_bias},
                                                                {"k bias", &w.k_bias},
                                                                {"v bias", &w.v_bias},
                                                                {"o", &w.o},
                                                                {"o bias", &w.o_bias},
                                                                {"sinks", &w.sinks},
                                                                {"mlp_norm", &w.mlp_norm},
                                                                {"router", &w.router},
                                                                {"gate bias", &w.gate_bias},
                                                                {"router bias", &w.router_bias},
                                                                {"up bias", &w.up_bias},
                                                                {"down bias", &w.down_bias}};
  for (const auto& [name, matrix] : matrices) RETURN_IF_ERROR(check_matrix(layer, name, *matrix));
  RETURN_IF_ERROR(check_experts(layer, "gate", w.gate));
  RETURN_IF_ERROR(check_experts(layer, "up", w.up));
  return check_experts(layer, "down", w.down);
}

}  // namespace

bool row_is_finite(const MatrixView& m, int64_t r) {
  const std::byte* row = m.data + r * m.row_stride;
  if (m.format == Format::kF32) return plain_finite(m, row, kF32Exponent);
  if (is_plain(m.format))
    return plain_finite(m, row, m.format == Format::kF16 ? kF16Exponent : kBF16Exponent);
  const std::byte* scales = m.scales == nullptr ? nullptr : m.scales + r * m.scale_stride;
  for (int64_t b = 0; b < m.cols / mx::kBlock; ++b) {
    if (!block_finite(m, row, scales, b)) return false;
  }
  return true;
}

Status check_finite(const MatrixView& m, const std::string& name, ThreadPool& pool) {
  constexpr int64_t kRows = 256;
  std::atomic<int64_t> first{m.rows};
  pool.for_each((m.rows + kRows - 1) / kRows, [&](int64_t chunk, int) {
    for (int64_t r = chunk * kRows; r < std::min(m.rows, (chunk + 1) * kRows); ++r) {
      if (row_is_finite(m, r)) continue;
      for (int64_t known = first; r < known && !first.compare_exchange_weak(known, r);) {
      }
      return;
    }
  });
  return first == m.rows ? Status() : not_finite(name, first);
}

Status check_finite(const ModelWeights& w) {
  RETURN_IF_ERROR(check_matrix(kNoLayer, "embed", w.embed));
  RETURN_IF_ERROR(check_matrix(kNoLayer, "final_norm", w.final_norm));
  RETURN_IF_ERROR(check_matrix(kNoLayer, "head", w.head));
  for (size_t l = 0; l < w.layers.size(); ++l) RETURN_IF_ERROR(check_layer(static_cast<int>(l), w.layers[l]));
  return {};
}

}  // namespace moesaic
