// What the experts' tests share: experts and what they give.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cuda/sm90a/on_host/error.h"
#include "backend/cuda/sm90a/slab_kernel.cuh"
#include "mx/formats.h"

namespace moesaic::cuda::sm90a {

inline constexpr int kExperts = 5;
enum Part { kGatePart, kUpPart, kDownPart, kParts };

// Random experts, as they were stored and as slabs.
struct Experts {
  std::vector<uint8_t> codes[kParts], scales[kParts];
  std::vector<float> bias[kParts];  // representable in BF16
  std::vector<uint8_t> fc1 = std::vector<uint8_t>(kExperts * kFc1Bytes);
  std::vector<uint8_t> fc2 = std::vector<uint8_t>(kExperts * kFc2Bytes);
  int fault = 0;

  Experts() {
    std::mt19937 rng(3);
    for (int part = 0; part < kParts; ++part) {
      codes[part].resize(size_t{kExperts} * kHidden * kHidden / 2);
      scales[part].resize(size_t{kExperts} * kHidden * kBlocks);
      bias[part].resize(size_t{kExperts} * kHidden);
      for (uint8_t& x : codes[part]) x = static_cast<uint8_t>(rng());
      for (uint8_t& x : scales[part]) x = static_cast<uint8_t>(117 + rng() % 5);
      for (float& x : bias[part]) x = static_cast<float>(static_cast<int>(rng() % 256) - 128) / 128;
    }
    pack({.source = {raw(kGatePart), raw(kUpPart)},
          .down = false,
          .experts = kExperts,
          .bias = {bias[kGatePart].data(), bias[kUpPart].data()},
          .out = fc1.data(),
          .expert_bytes = kFc1Bytes,
          .fault = &fault});
    pack({.source = {raw(kDownPart), raw(kDownPart)},
          .down = true,
          .experts = kExperts,
          .bias = {bias[kDownPart].data(), bias[kDownPart].data()},
          .out = fc2.data(),
          .expert_bytes = kFc2Bytes,
          .fault = &fault});
  }
  Raw raw(Part part) const {
    return {.format = Format::kMxfp4,
            .rows = kHidden,
            .row_stride = kHidden / 2,
            .scale_stride = kBlocks,
            .data = codes[part].data(),
            .scales = scales[part].data(),
            .expert_stride = int64_t{kHidden} * kHidden / 2,
            .expert_scale_stride = int64_t{kHidden} * kBlocks};
  }
  static void pack(const SlabParams& p) {
    on_host::ThreadBlock block(32, nullptr);
    const unsigned slabs = p.down ? kHidden / 8 : 2 * kFc1Units;
    const std::function<void()> kernel = [&] { slab_kernel(p); };
    for (unsigned expert = 0; expert < kExperts; ++expert) {
      for (unsigned slab = 0; slab < slabs; ++slab)
        block.begin({slab, expert, 0}, dim3(slabs, kExperts), kernel), block.advance();
    }
  }
  // A row's product with x, and its bias.
  double times(Part part, int expert, int row, const std::vector<float>& x) const {
    const int64_t at = int64_t{expert} * kHidden + row;
    double sum = static_cast<double>(bias[part][at]);
    for (int block = 0; block < kBlocks; ++block) {
      double in_block = 0;
      for (int i = 0; i < kBlock; ++i) {
        const int column = block * kBlock + i, byte = codes[part][(at * kHidden + column) / 2];
        in_block += mx::decode_e2m1(static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4)) * x[column];
      }
      sum += in_block * mx::decode_e8m0(scales[part][at * kBlocks + block]);
    }
    return sum;
  }
};

inline const Experts& experts() {
  static const Experts all;
  return all;
}

// SwiGLU of an expert's first product, with gpt-oss's alpha and limit.
inline std::vector<float> hidden_of(int expert, const std::vector<float>& x) {
  std::vector<float> h(kHidden);
  for (int row = 0; row < kHidden; ++row) {
    const double gate = std::min(experts().times(kGatePart, expert, row, x), 7.0);
    const double up = std::clamp(experts().times(kUpPart, expert, row, x), -7.0, 7.0);
    h[row] = static_cast<float>(gate / (1 + std::exp(-1.702 * gate)) * (up + 1));
  }
  return h;
}

// Of both products, the second from the first one's h, which is rounded to F16.
struct Errors {
  Error fc1, fc2;
  void add(int expert, const std::vector<float>& x, const std::vector<float>& h, const float* y) {
    const std::vector<float> want = hidden_of(expert, x);
    for (int row = 0; row < kHidden; ++row) {
      fc1.add(h[row], want[row]);
      fc2.add(y[row], experts().times(kDownPart, expert, row, h));
    }
  }
  void check() const {
    EXPECT_LT(fc1.relative(), 4e-4);
    EXPECT_LT(fc2.relative(), 2e-6);
  }
};

}  // namespace moesaic::cuda::sm90a
