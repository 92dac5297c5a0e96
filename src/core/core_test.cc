#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/model_config.h"
#include "core/weights.h"
#include "mx/block.h"

namespace moesaic {
namespace {

TEST(ModelConfig, PublishedSizesAreValid) {
  for (const char* name : {"gpt-oss-20b", "gpt-oss-120b"}) {
    const auto config = published_config(name);
    ASSERT_TRUE(config.ok());
    EXPECT_TRUE(validate(config.value()).ok());
  }
  EXPECT_FALSE(published_config("gpt-5").ok());
}

TEST(ModelConfig, NamesTheBadValue) {
  ModelConfig c = published_config("gpt-oss-20b").value();
  c.hidden = 100;
  EXPECT_NE(validate(c).message().find("hidden_size 100"), std::string::npos);
  c = published_config("gpt-oss-20b").value();
  c.experts_per_token = 33;
  EXPECT_NE(validate(c).message().find("num_experts_per_tok"), std::string::npos);
}

// The published bounds of YaRN for gpt-oss: 8.0928 and 17.3980, not rounded.
TEST(Rope, YarnBoundsAreNotRounded) {
  const RopeTable t = make_rope_table({}, 64);
  ASSERT_EQ(t.inverse_frequency.size(), 32u);
  EXPECT_NEAR(t.attention_factor, 1.3465735902799727, 1e-12);
  EXPECT_DOUBLE_EQ(t.inverse_frequency[8], std::pow(150000.0, -16.0 / 64));
  const double keep = 1 - (9 - 8.0928) / (17.3980 - 8.0928);
  const double plain = std::pow(150000.0, -18.0 / 64);
  EXPECT_NEAR(t.inverse_frequency[9], plain / 32 * (1 - keep) + plain * keep, plain * 1e-5);
  EXPECT_DOUBLE_EQ(t.inverse_frequency[20], std::pow(150000.0, -40.0 / 64) / 32);
}

// The numbers are those of transformers' _compute_llama3_parameters.
TEST(Rope, OfLlama3IsInterpolatedByTurns) {
  const RopeTable t = make_rope_table({.theta = 500000.0,
                                       .factor = 8.0,
                                       .beta_fast = 4.0,
                                       .beta_slow = 1.0,
                                       .original_context = 8192,
                                       .attention_factor = 1,
                                       .llama3 = true},
                                      128);
  EXPECT_EQ(t.attention_factor, 1);
  for (const auto& [i, frequency] : {std::pair(0, 1.0),
                                     {20, 0.016560440080994446},
                                     {30, 0.0013718935677611381},
                                     {33, 0.00031269375038406517},
                                     {36, 7.78465527393245e-05},
                                     {63, 3.068925988914511e-07}})
    EXPECT_NEAR(t.inverse_frequency[static_cast<size_t>(i)], frequency, frequency * 1e-12) << i;
}

TEST(Weights, GgufAndHuggingFaceOrderReadTheSame) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>((i * 37) % 13 - 6) * 0.25f;
  uint8_t hf[32], scales[2], gguf[34];
  for (int b = 0; b < 2; ++b) {
    scales[b] = mx::quantize_mxfp4(x + 32 * b, hf + 16 * b);
    gguf[17 * b] = scales[b];
    for (int j = 0; j < 16; ++j) {
      const auto code = [&](int e) { return (hf[16 * b + e / 2] >> (e % 2 * 4)) & 15; };
      gguf[17 * b + 1 + j] = static_cast<uint8_t>(code(j) | (code(j + 16) << 4));
    }
  }
  const auto a = dense_view(Format::kMxfp4, 1, 64, reinterpret_cast<std::byte*>(hf),
                            reinterpret_cast<std::byte*>(scales));
  const auto g = dense_view(Format::kMxfp4Gguf, 1, 64, reinterpret_cast<std::byte*>(gguf));
  std::vector<float> ra(64), rg(64);
  read_row(a, 0, ra);
  read_row(g, 0, rg);
  EXPECT_EQ(ra, rg);
}

TEST(Weights, SlicesAreViews) {
  std::vector<float> data(24);
  for (size_t i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
  const auto m = dense_view(Format::kF32, 6, 4, reinterpret_cast<std::byte*>(data.data()));
  std::vector<float> row(4);
  read_row(slice_rows(m, 1, 3, 2), 2, row);
  EXPECT_EQ(row, (std::vector<float>{20, 21, 22, 23}));
}

}  // namespace
}  // namespace moesaic
