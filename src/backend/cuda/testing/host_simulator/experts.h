// Experts and their results for the experts' tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <span>
#include <vector>

#include "backend/cuda/kernels/sm90/repack_slabs.cuh"
#include "backend/reference/experts.h"
#include "backend/reference/linear.h"
#include "base/relative_error_test.h"

namespace moesaic::cuda::sm90 {

inline constexpr int kExperts = 5;
enum Part { kGatePart, kUpPart, kDownPart, kParts };

// Random experts as they were stored.
struct StoredExperts {
  std::vector<uint8_t> codes[kParts], scales[kParts];
  std::vector<float> bias[kParts];  // representable in BF16

  StoredExperts() {
    std::mt19937 rng(3);
    for (int part = 0; part < kParts; ++part) {
      codes[part].resize(size_t{kExperts} * kHidden * kHidden / 2);
      scales[part].resize(size_t{kExperts} * kHidden * kBlocks);
      bias[part].resize(size_t{kExperts} * kHidden);
      for (uint8_t& x : codes[part]) x = static_cast<uint8_t>(rng());
      for (uint8_t& x : scales[part]) x = static_cast<uint8_t>(117 + rng() % 5);
      for (float& x : bias[part]) x = static_cast<float>(static_cast<int>(rng() % 256) - 128) / 128;
    }
  }
};
inline const StoredExperts& stored_experts() {
  static const StoredExperts all;
  return all;
}

// The same as a rank's slabs for a device of so many multiprocessors.
struct Experts {
  Range rows;  // the rank's, in each section
  SlabLayout layout;
  const std::vector<uint8_t> (&codes)[kParts] = stored_experts().codes,
                             (&scales)[kParts] = stored_experts().scales;
  const std::vector<float> (&bias)[kParts] = stored_experts().bias;
  std::vector<uint8_t> fc1, fc2;
  int fault = 0;

  explicit Experts(int sms, const RankShare& share = {})
      : rows(share.rows(kHidden)),
        layout(slab_layout(sms, static_cast<int>(rows.count) / 8, static_cast<int>(rows.count) / 8)) {
    pack(false, kGatePart, kUpPart, layout.fc1_bytes(), fc1);
    pack(true, kDownPart, kDownPart, layout.fc2_bytes(), fc2);
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
  Raw own_raw(Part part) const {
    Raw r = raw(part);
    r.rows = rows.count, r.data += rows.first * r.row_stride, r.scales += rows.first * r.scale_stride;
    return r;
  }
  std::vector<float> own_bias(Part part) const {
    std::vector<float> own;
    for (int e = 0; e < kExperts; ++e) {
      const auto from = bias[part].begin() + e * kHidden + rows.first;
      own.insert(own.end(), from, from + rows.count);
    }
    return own;
  }
  void pack(bool down, Part first, Part second, size_t expert_bytes, std::vector<uint8_t>& out) {
    out.resize(kExperts * expert_bytes);
    const std::vector<float> first_bias = own_bias(first), second_bias = own_bias(second);
    const SlabParams p{.source = {own_raw(first), own_raw(second)},
                       .down = down,
                       .layout = layout,
                       .experts = kExperts,
                       .bias = {first_bias.data(), second_bias.data()},
                       .out = out.data(),
                       .expert_bytes = expert_bytes,
                       .fault = &fault};
    const dim3 grid(down ? layout.fc2_all : 2 * layout.fc1_all, kExperts);
    EXPECT_TRUE(on_host::run_in_turn(grid, 32, {}, [&] { slab_kernel(p); }));
  }

  // By the reference backend's arithmetic: an expert's product with x, and its bias.
  std::vector<float> times(Part part, int expert, std::span<const float> x) const {
    const Raw r = of_expert(raw(part), expert);
    std::vector<float> y(kHidden);
    reference::linear(dense_view(r.format, kHidden, kHidden, reinterpret_cast<const std::byte*>(r.data),
                                 reinterpret_cast<const std::byte*>(r.scales)),
                      std::span(bias[part]).subspan(size_t{kHidden} * expert, kHidden), x, y);
    return y;
  }
  // SwiGLU of its first product, with gpt-oss's alpha and limit.
  std::vector<float> hidden(int expert, std::span<const float> x) const {
    std::vector<float> h = times(kGatePart, expert, x);
    const std::vector<float> up = times(kUpPart, expert, x);
    for (int i = 0; i < kHidden; ++i) h[i] = reference::swiglu(h[i], up[i], 1.702, 7);
    return h;
  }
};

inline const Experts& experts(int sms = kFullSms) {
  static std::map<int, Experts> all;
  return all.try_emplace(sms, sms).first->second;
}

// Errors of both products, the second from the first one's h, which is rounded to F16.
struct Errors {
  RelativeError fc1, fc2;
  // x, h: a token's, by column; y: its result.
  template <class X, class H>
  void add(int expert, const X& x, const H& h, const float* y) {
    std::vector<float> in(kHidden), hidden(kHidden);
    for (int i = 0; i < kHidden; ++i) in[i] = __half2float(x(i)), hidden[i] = __half2float(h(i)) / kHScale;
    const std::vector<float> want_h = experts().hidden(expert, in);
    const std::vector<float> want = experts().times(kDownPart, expert, hidden);
    for (int i = 0; i < kHidden; ++i) fc1.add(hidden[i], want_h[i]), fc2.add(y[i], want[i]);
  }
  void check() const {
    EXPECT_LT(fc1.value(), 4e-4);
    EXPECT_LT(fc2.value(), 2e-6);
  }
};

}  // namespace moesaic::cuda::sm90
