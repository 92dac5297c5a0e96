// Random matrices of every format, for the tests of kernels.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/gemm.h"
#include "mx/block.h"

namespace moesaic::cpu {

// A source matrix of any format with its storage.
struct Source {
  std::vector<uint8_t> data, scales;
  MatrixView view;
};

inline Source make_source(Format format, int rows, int cols, std::mt19937& rng) {
  Source s;
  s.data.resize(rows * row_bytes(format, cols));
  s.scales.resize(rows * cols / 32);
  std::normal_distribution<float> normal(0, 0.05f);
  for (auto& b : s.data) b = static_cast<uint8_t>(rng());
  for (auto& b : s.scales) b = static_cast<uint8_t>(118 + rng() % 5);
  const int64_t n = static_cast<int64_t>(rows) * cols;
  for (int64_t i = 0; i < n; ++i) {
    const float v = normal(rng);
    const uint16_t half = format == Format::kF16 ? mx::encode_f16(v) : mx::encode_bf16(v);
    if (format == Format::kF32) std::memcpy(&s.data[i * 4], &v, 4);
    if (format == Format::kF16 || format == Format::kBF16) std::memcpy(&s.data[i * 2], &half, 2);
    if (format == Format::kMxfp8) s.data[i] = mx::encode_e4m3(v * 1000);
    if (format == Format::kQ8_0 && i % 32 == 0) {
      const uint16_t scale = mx::encode_f16(0.001f + std::fabs(v) * 0.01f);
      std::memcpy(&s.data[i / 32 * 34], &scale, 2);
    }
    if (format == Format::kMxfp4Gguf && i % 32 == 0)
      s.data[i / 32 * 17] = static_cast<uint8_t>(118 + rng() % 5);
  }
  s.view = dense_view(format, rows, cols, reinterpret_cast<std::byte*>(s.data.data()),
                      reinterpret_cast<std::byte*>(s.scales.data()));
  return s;
}

}  // namespace moesaic::cpu
