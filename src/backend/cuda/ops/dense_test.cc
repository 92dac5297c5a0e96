// The dense products against a loop in double, on a device: every kernel that select() may name for matrices
// that are not in quads (kernels/sm120/dense_test.cc has those), at its smallest and its largest number of
// tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/ops/linear.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/testing/on_device.h"
#include "backend/cuda/weights/upload.h"
#include "core/q8_0.h"

namespace moesaic::cuda {
namespace {

// A matrix as a checkpoint stores it.
struct Stored {
  MatrixView view;
  std::vector<std::byte> data, scales;
  std::vector<float> values;  // [rows, cols]

  Stored(Format format, int rows, int cols, std::mt19937& rng)
      : data(rows * row_bytes(format, cols)), scales(rows * cols / mx::kBlock), values(int64_t{rows} * cols) {
    std::normal_distribution<float> normal;
    std::vector<float> row(cols);
    for (int r = 0; r < rows; ++r) {
      // Rows and blocks of very different sizes: a scale in the wrong place is seen.
      for (int i = 0; i < cols; ++i)
        row[i] = normal(rng) * std::exp2(static_cast<float>((r + i / mx::kBlock) % 5 - 6));
      store(format, row, data.data() + r * row_bytes(format, cols), scales.data() + r * cols / mx::kBlock);
    }
    view = dense_view(format, rows, cols, data.data(), scales.data());
    for (int r = 0; r < rows; ++r) read_row(view, r, std::span(values).subspan(int64_t{r} * cols, cols));
  }

  static void store(Format format, const std::vector<float>& row, std::byte* data, std::byte* scales) {
    auto* bytes = reinterpret_cast<uint8_t*>(data);
    for (size_t i = 0; i < row.size(); ++i) {
      const uint16_t code = format == Format::kBF16 ? mx::encode_bf16(row[i]) : mx::encode_f16(row[i]);
      if (is_plain(format)) std::memcpy(bytes + 2 * i, &code, 2);
    }
    for (size_t b = 0; b < row.size() / mx::kBlock; ++b) {
      const float* x = row.data() + b * mx::kBlock;
      if (format == Format::kQ8_0) {
        const uint16_t scale = quantize_q8_0(x, reinterpret_cast<int8_t*>(bytes + b * 34 + 2));
        std::memcpy(bytes + b * 34, &scale, 2);
      }
      if (format == Format::kMxfp8) scales[b] = std::byte{mx::quantize_mxfp8(x, bytes + b * mx::kBlock)};
      if (format == Format::kMxfp4) scales[b] = std::byte{mx::quantize_mxfp4(x, bytes + b * 16)};
    }
  }
};

class DenseProductTest : public sm120::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    int sms = 0;
    const Result<Features> features = features_of_device(0);
    ASSERT_TRUE(features.ok()) << features.status().message();
    ASSERT_EQ(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), 0);
    targets_ = {target_of(features.value(), {}), target_of(features.value(), {.portable = true})};
    layout_ = sm90::slab_layout(std::clamp(sms, sm90::kFewestSms, sm90::kMostSms));
  }

  Matrix upload(const Stored& m) {
    Uploader uploader;
    EXPECT_TRUE(uploader.open(cudaStreamPerThread, {}).ok());
    const Kind kind = kind_of(m.view.format, std::nullopt);
    Result<Matrix> matrix = uploader.matrix({m.view}, kind, RowOrder::kPlain, 0, "test", "test");
    EXPECT_TRUE(matrix.ok() && uploader.finish().ok());
    return std::move(matrix).value();
  }

  void check(const Stored& m, int tokens) {
    const Matrix w = upload(m);
    const int rows = static_cast<int>(m.view.rows), cols = static_cast<int>(m.view.cols);
    std::vector<uint16_t> codes(int64_t{tokens} * cols);
    std::vector<float> x(codes.size()), bias(rows);
    std::normal_distribution<float> normal;
    for (float& b : bias) b = normal(rng_);
    for (size_t i = 0; i < codes.size(); ++i) {
      const float value = normal(rng_);
      codes[i] = takes_bf16(w.kind) ? mx::encode_bf16(value) : mx::encode_f16(value);
      x[i] = takes_bf16(w.kind) ? mx::decode_bf16(codes[i]) : mx::decode_f16(codes[i]);
    }
    const DeviceBuffer input = sm120::upload(codes), added = sm120::upload(bias);
    const DeviceBuffer tiles = sm120::poisoned(sm90::tile_tokens(tokens, 1 + tokens / 8) * cols * 2);
    for (const Target& target : targets_) {
      const auto choice = select(LinearShape{w.kind, rows, cols, tokens}, target);
      ASSERT_TRUE(choice.ok()) << choice.status().message();
      kernels_.insert(std::string(choice.value().config->name));
      const DeviceBuffer out = sm120::poisoned(int64_t{tokens} * rows * sizeof(float));
      const Status status =
          linear(w, Activations{.x = input.as<void>(), .factor = 0.5f, .tokens = tokens},
                 Store{.out = out.as<float>(), .stride = rows, .bias = added.as<float>(), .rows = rows},
                 {target, layout_, tiles.as<void>(), nullptr});
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      compare(m, x, bias, sm120::download<float>(out, int64_t{tokens} * rows), choice.value().config->name);
    }
  }

  // Every product is exact or rounded to 11 bits in F16; sums are F32. Q8_0 is unsigned on the device: 128
  // times a block's sum of activations is taken out again.
  void compare(const Stored& m, const std::vector<float>& x, const std::vector<float>& bias,
               const std::vector<float>& out, std::string_view kernel) {
    const int64_t rows = m.view.rows, cols = m.view.cols;
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / rows, row = static_cast<int64_t>(i) % rows;
      const sm120::Dot d =
          sm120::dot(m.values.data() + row * cols, x.data() + token * cols, static_cast<int>(cols));
      const double want = d.sum / 2 + bias[row];
      ASSERT_NEAR(out[i], want, d.size * 0x1p-14 + std::fabs(bias[row]) * 0x1p-20)
          << kernel << " " << format_name(m.view.format) << " [" << rows << ", " << cols << "] token "
          << token << " row " << row;
    }
  }

  std::mt19937 rng_{11};
  std::vector<Target> targets_;
  sm90::SlabLayout layout_;
  std::set<std::string> kernels_;  // those that ran
};

constexpr Format kFormats[] = {Format::kBF16, Format::kF16, Format::kQ8_0, Format::kMxfp8, Format::kMxfp4};

TEST_F(DenseProductTest, EveryFormatAndNumberOfTokens) {
  for (const Format format : kFormats) {
    const Stored m(format, 96, 2880, rng_);
    for (const int tokens : {1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 300}) check(m, tokens);
  }
  if (targets_[0].features.have(kWgmma)) {
    for (const LinearConfig& config : linear_configs()) {
      if (config.kernel == LinearKernel::kBlockScaled) continue;
      EXPECT_TRUE(kernels_.contains(std::string(config.name))) << config.name << " never ran";
    }
  }
}

TEST_F(DenseProductTest, OtherShapes) {
  for (const Format format : kFormats) {
    for (const auto& [rows, cols] : {std::pair{8, 32}, {40, 96}, {200, 448}, {33, 4096}}) {
      const Stored m(format, rows, cols, rng_);
      for (const int tokens : {1, 5, 12, 40}) check(m, tokens);
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
