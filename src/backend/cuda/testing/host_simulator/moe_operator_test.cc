// The operator on a caller's tensors (backend/moe_operator.h), whole and on the host: its own code and
// Hopper's kernels, against a double loop. See thread_block.h.
#include "backend/moe_operator.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/ops/workspaces.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/features.h"
#include "backend/cuda/testing/host_simulator/captures.h"
#include "base/relative_error_test.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

using cuda::DeviceBuffer;

template <typename T>
struct OnDevice {
  DeviceBuffer buffer;
  explicit OnDevice(const std::vector<T>& values)
      : buffer(DeviceBuffer::allocate(std::max<size_t>(1, values.size()) * sizeof(T), "a test").value()) {
    std::memcpy(buffer.as<void>(), values.data(), values.size() * sizeof(T));
  }
  T* data() const { return buffer.as<T>(); }
};

uint16_t rounded(float x, ElementType type) {
  return type == ElementType::kF16 ? __half_raw(__float2half_rn(x)).x
                                   : __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
}
float value(uint16_t bits, ElementType type) {
  return type == ElementType::kF16 ? mx::decode_f16(bits) : mx::decode_bf16(bits);
}

// A matrix of all experts, as checkpoints have it, in MXFP4 and as values.
struct Weights {
  int experts, rows, cols;
  std::vector<uint8_t> blocks, scales;
  std::vector<float> bias;
  Weights(int e, int r, int c, std::mt19937& rng) : experts(e), rows(r), cols(c) {
    blocks.resize(static_cast<size_t>(e) * r * c / 2);
    scales.resize(static_cast<size_t>(e) * r * c / 32);
    bias.resize(static_cast<size_t>(e) * r);
    for (uint8_t& x : blocks) x = static_cast<uint8_t>(rng());
    const int least = c > 1000 ? 118 : 121;
    for (uint8_t& x : scales) x = static_cast<uint8_t>(least + rng() % 3);
    for (float& x : bias) x = static_cast<float>(static_cast<int>(rng() % 256) - 128) / 128;
  }
  std::vector<double> times(int expert, const std::vector<double>& x) const {
    static const std::array<double, 16> codes = [] {
      std::array<double, 16> all;
      for (uint8_t code = 0; code < 16; ++code) all[code] = mx::decode_e2m1(code);
      return all;
    }();
    std::vector<double> y(rows);
    for (int row = 0; row < rows; ++row) {
      const size_t index = static_cast<size_t>(expert) * rows + row;
      const uint8_t* bytes = &blocks[index * (cols / 2)];
      double sum = bias[index];
      for (int block = 0; block < cols / 32; ++block) {
        double part = 0;
        for (int col = 32 * block; col < 32 * (block + 1); col += 2)
          part += codes[bytes[col / 2] & 15] * x[col] + codes[bytes[col / 2] >> 4] * x[col + 1];
        sum += std::ldexp(part, scales[index * (cols / 32) + block] - 127);
      }
      y[row] = sum;
    }
    return y;
  }
};

struct Case {
  const char* name;
  int tokens, experts, hidden, intermediate;
  ElementType type = ElementType::kBF16;
  bool from_logits = false;
  int first = 0, count = 0;  // the experts that are here; count 0: all
  float alpha = 1.702f, limit = 7, offset = 1;
  bool interleaved = true, ids64 = false;
  int top_k = 4;
  const char* plan = nullptr;  // the kernel that must run
  const char* plan_without_wgmma = plan;
  int checked = 1 << 20;  // tokens
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's name
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Layer {
  Case c;
  std::mt19937 rng{11};
  Weights w13, w2;
  int count;
  Layer(const Case& given)
      : c(given),
        w13(c.experts, 2 * c.intermediate, c.hidden, rng),
        w2(c.experts, c.hidden, c.intermediate, rng),
        count(c.count > 0 ? c.count : c.experts) {}

  double activation(double gate, double up) const {
    const double limit = c.limit > 0 ? double{c.limit} : std::numeric_limits<double>::infinity();
    gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
    return gate / (1 + std::exp(-double{c.alpha} * gate)) * (up + c.offset);
  }
  std::vector<double> expert(int e, const std::vector<double>& x) const {
    const std::vector<double> both = w13.times(e, x);
    std::vector<double> h(c.intermediate);
    for (int i = 0; i < c.intermediate; ++i)
      h[i] = c.interleaved ? activation(both[2 * i], both[2 * i + 1])
                           : activation(both[i], both[c.intermediate + i]);
    return w2.times(e, h);
  }

  Result<std::unique_ptr<MoeOperator>> prepare(bool warm_up = false) const {
    const auto matrix = [&](const Weights& w, OnDevice<uint8_t>& blocks, OnDevice<uint8_t>& scales,
                            OnDevice<float>& bias) {
      const int64_t block_row = w.cols / 2, scale_row = w.cols / 32;
      return MoeOperatorMatrix{.blocks = blocks.data() + c.first * w.rows * block_row,
                               .scales = scales.data() + c.first * w.rows * scale_row,
                               .bias = bias.data() + int64_t{c.first} * w.rows,
                               .bias_type = ElementType::kF32,
                               .block_expert_stride = w.rows * block_row,
                               .block_row_stride = block_row,
                               .scale_expert_stride = w.rows * scale_row,
                               .scale_row_stride = scale_row,
                               .bias_expert_stride = w.rows};
    };
    OnDevice<uint8_t> b13(w13.blocks), s13(w13.scales), b2(w2.blocks), s2(w2.scales);
    OnDevice<float> bias13(w13.bias), bias2(w2.bias);
    return prepare_moe({.experts = count,
                        .first_expert = c.first,
                        .routed_experts = c.experts,
                        .top_k = c.top_k,
                        .hidden = c.hidden,
                        .intermediate = c.intermediate,
                        .alpha = c.alpha,
                        .limit = c.limit,
                        .offset = c.offset,
                        .interleaved = c.interleaved,
                        .warm_up = warm_up},
                       matrix(w13, b13, s13, bias13), matrix(w2, b2, s2, bias2), nullptr);
  }
};

// Inputs and outputs.
struct Tokens {
  std::vector<uint16_t> x, out;
  std::vector<float> logits, weights;
  std::vector<int32_t> ids;
  Tokens(const Case& c, std::mt19937& rng)
      : x(static_cast<size_t>(c.tokens) * c.hidden), out(x.size(), 0xFFFF) {
    std::normal_distribution<float> normal;
    for (uint16_t& v : x) v = rounded(normal(rng), c.type);
    // The last experts are hardly ever chosen.
    for (int t = 0; t < c.tokens; ++t) {
      std::vector<std::pair<float, int>> row;
      for (int e = 0; e < c.experts; ++e) {
        const float logit =
            value(rounded(2 * normal(rng) - (e == c.experts - 1 ? 40.0f : 0.0f), ElementType::kBF16),
                  ElementType::kBF16);
        logits.push_back(logit), row.emplace_back(-logit, e);
      }
      std::sort(row.begin(), row.end());
      double sum = 0;
      for (int k = 0; k < c.top_k; ++k) sum += std::exp(double{row[0].first} - row[k].first);
      for (int k = 0; k < c.top_k; ++k) {
        ids.push_back(row[k].second);
        weights.push_back(static_cast<float>(std::exp(double{row[0].first} - row[k].first) / sum));
      }
    }
    // As ids may be: in another order, with weights whose sum is not 1, of nobody, and twice the same.
    if (c.from_logits) return;
    for (int t = 0; t < c.tokens; ++t) {
      std::rotate(&ids[t * c.top_k], &ids[t * c.top_k] + t % c.top_k, &ids[t * c.top_k] + c.top_k);
      for (int k = 0; k < c.top_k; ++k) weights[t * c.top_k + k] *= 1.0f + 0.25f * static_cast<float>(t % 3);
      if (t % 5 == 3) ids[t * c.top_k] = t % 2 == 0 ? -1 : c.experts + 7;
    }
    if (c.tokens > 1 && c.top_k > 1) ids[c.top_k + 1] = ids[c.top_k];
  }
};

class MoeOperators : public testing::TestWithParam<Case> {};

TEST_P(MoeOperators, GiveWhatADoubleLoopGives) {
  const Case& c = GetParam();
  Layer layer(c);
  Tokens tokens(c, layer.rng);
  auto prepared = layer.prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  const MoeOperator& moe = *prepared.value();
  if (c.plan != nullptr) {
    const bool wgmma = cuda::features_of_device(0).value().have(cuda::kWgmma);
    EXPECT_EQ(moe.plan(c.tokens), wgmma ? c.plan : c.plan_without_wgmma);
  }
  const OnDevice<uint16_t> x(tokens.x), out(tokens.out);
  const OnDevice<int32_t> ids(tokens.ids);
  const OnDevice<int64_t> ids64(std::vector<int64_t>(tokens.ids.begin(), tokens.ids.end()));
  const OnDevice<float> weights(tokens.weights), logits(tokens.logits);
  const OnDevice<std::byte> workspace(std::vector<std::byte>(moe.workspace_bytes(c.tokens), std::byte{0xFF}));
  MoeOperatorCall call{.tokens = c.tokens,
                       .type = c.type,
                       .x = x.data(),
                       .out = out.data(),
                       .workspace = workspace.data(),
                       .workspace_bytes = workspace.buffer.bytes()};
  if (c.from_logits) {
    call.logits = logits.data();
  } else {
    call.ids = c.ids64 ? static_cast<const void*>(ids64.data()) : ids.data(), call.ids64 = c.ids64;
    call.weights = weights.data();
  }
  const Status status = moe.run(call);
  ASSERT_TRUE(status.ok()) << status.message();

  RelativeError error;
  int checked = 0;
  for (int t = c.tokens - 1; t >= 0; t -= std::max(1, c.tokens / c.checked)) {
    std::vector<double> in(c.hidden), want(c.hidden);
    for (int i = 0; i < c.hidden; ++i) in[i] = value(tokens.x[static_cast<size_t>(t) * c.hidden + i], c.type);
    for (int k = 0; k < c.top_k; ++k) {
      const int id = tokens.ids[t * c.top_k + k];
      if (id < c.first || id >= c.first + layer.count) continue;
      const std::vector<double> y = layer.expert(id, in);
      for (int i = 0; i < c.hidden; ++i) want[i] += double{tokens.weights[t * c.top_k + k]} * y[i];
    }
    ++checked;
    for (int i = 0; i < c.hidden; ++i)
      error.add(value(out.data()[static_cast<size_t>(t) * c.hidden + i], c.type), want[i]);
  }
  EXPECT_GT(checked, 0);
  // The output's rounding (uniform: a half unit / sqrt(3)), and h's to F16.
  const double most = c.type == ElementType::kBF16 ? 2.6e-3 : 6e-4;
  EXPECT_LE(error.difference, most * most * error.size) << error.value();
}

constexpr ElementType kF16 = ElementType::kF16;
constexpr Case sized(const char* name, int tokens, int experts, int hidden, int intermediate, Case c = {}) {
  c.name = name, c.tokens = tokens, c.experts = experts, c.hidden = hidden, c.intermediate = intermediate;
  return c;
}
constexpr Case gpt_oss(const char* name, int tokens, int experts, Case c) {
  return sized(name, tokens, experts, 2880, 2880, c);
}
INSTANTIATE_TEST_SUITE_P(
    OnPortableKernels, MoeOperators,
    testing::Values(
        sized("one", 1, 6, 96, 64), sized("odd_f16", 13, 6, 96, 160, {.type = kF16}),
        sized("logits", 7, 9, 64, 96, {.from_logits = true}),
        sized("many_logits", 77, 9, 64, 96, {.type = kF16, .from_logits = true}),
        sized("many", 131, 5, 64, 64, {.ids64 = true}),
        sized("range", 33, 9, 64, 96, {.first = 3, .count = 2}),
        sized("range_logits", 31, 9, 64, 96, {.type = kF16, .from_logits = true, .first = 4, .count = 5}),
        sized("nobody_here", 3, 9, 64, 96, {.first = 8, .count = 1}),
        sized("plain", 9, 6, 96, 64,
              {.type = kF16, .alpha = 1, .limit = 0, .offset = 0, .interleaved = false}),
        sized("clamped_plain_top2", 5, 6, 96, 64, {.alpha = 1, .limit = 1.5f, .offset = 0, .top_k = 2}),
        sized("two_pieces", 4099, 3, 32, 32, {.ids64 = true, .top_k = 1, .checked = 300}),
        sized("two_pieces_logits", 4097, 3, 32, 32, {.from_logits = true, .top_k = 2, .checked = 300})),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    OnSlabs, MoeOperators,
    testing::Values(gpt_oss("one", 1, 4, {.plan = "slabs, decode"}),
                    gpt_oss("five_of_a_range", 5, 7,
                            {.type = kF16, .first = 1, .count = 4, .plan = "slabs, decode", .checked = 3}),
                    gpt_oss("two_logits_of_a_range", 2, 6,
                            {.from_logits = true, .first = 2, .count = 4, .plan = "slabs, decode"}),
                    gpt_oss("three_of_few", 3, 7, {.first = 5, .count = 2, .plan = "slabs, split-k 16"}),
                    gpt_oss("nine_logits", 9, 4,
                            {.from_logits = true, .plan = "slabs, split-k 16", .checked = 2}),
                    gpt_oss("many_of_one", 250, 7,
                            {.first = 2,
                             .count = 1,
                             .plan = "slabs, wgmma 64",
                             .plan_without_wgmma = "slabs, mma 64",
                             .checked = 4})),
    [](const auto& test) { return test.param.name; });

// A fault that SwiGLU's clamps would hide makes a row of NaN, and no other.
TEST(MoeOperator, MarksRowsThatItCannotCompute) {
  const Case c{.name = "", .tokens = 5, .experts = 4, .hidden = 64, .intermediate = 64};
  Layer layer(c);
  Tokens tokens(c, layer.rng);
  auto prepared = layer.prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  tokens.x[0 * 64 + 5] = rounded(std::numeric_limits<float>::quiet_NaN(), c.type);
  tokens.x[1 * 64 + 63] = rounded(70000.0f, c.type);
  tokens.weights[2 * c.top_k] = -0.5f;
  const OnDevice<uint16_t> x(tokens.x), out(tokens.out);
  const OnDevice<int32_t> ids(tokens.ids);
  const OnDevice<float> weights(tokens.weights);
  const OnDevice<std::byte> workspace(std::vector<std::byte>(prepared.value()->workspace_bytes(c.tokens)));
  ASSERT_TRUE(prepared.value()
                  ->run({.tokens = c.tokens,
                         .x = x.data(),
                         .out = out.data(),
                         .ids = ids.data(),
                         .weights = weights.data(),
                         .workspace = workspace.data(),
                         .workspace_bytes = workspace.buffer.bytes()})
                  .ok());
  for (int t = 0; t < c.tokens; ++t) {
    for (int i = 0; i < c.hidden; ++i)
      EXPECT_EQ(std::isnan(value(out.data()[t * 64 + i], c.type)), t < 3) << t << " " << i;
  }
}

// Nobody else is told, nor cut short.
TEST(MoeOperator, TellsItsOwnStreamThatAKernelGaveUp) {
  const Case c{.name = "", .tokens = 2, .experts = 4, .hidden = 64, .intermediate = 64};
  Layer layer(c);
  const Tokens tokens(c, layer.rng);
  const auto prepared = layer.prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  const OnDevice<uint16_t> x(tokens.x), out(tokens.out);
  const OnDevice<int32_t> ids(tokens.ids);
  const OnDevice<float> weights(tokens.weights);
  const OnDevice<std::byte> workspace(std::vector<std::byte>(prepared.value()->workspace_bytes(c.tokens)));
  const auto run = [&](uintptr_t stream, const OnDevice<std::byte>* memory = nullptr) {
    return prepared.value()
        ->run({.tokens = c.tokens,
               .x = x.data(),
               .out = out.data(),
               .ids = ids.data(),
               .weights = weights.data(),
               .workspace = memory != nullptr ? memory->data() : nullptr,
               .workspace_bytes = memory != nullptr ? memory->buffer.bytes() : 0,
               .stream = reinterpret_cast<void*>(stream)})
        .message();
  };
  *cuda::Workspaces::fault_word(0, reinterpret_cast<cudaStream_t>(1)).value() = cuda::kGaveUp;
  cuda::on_host::captures().allocations_left = 0;  // none is needed with the caller's workspace
  for (uintptr_t stream = 2; stream < 40; ++stream) EXPECT_EQ(run(stream, &workspace), "");
  EXPECT_NE(run(1, &workspace).find("gave up"), std::string::npos);
  cuda::on_host::captures().allocations_left = -1;
  EXPECT_EQ(run(1), "");
  *cuda::Workspaces::fault_word(0, nullptr).value() = cuda::kGaveUp;
  EXPECT_NE(layer.prepare(true).status().message().find("gave up"), std::string::npos);
  EXPECT_EQ(layer.prepare(true).status().message(), "");
}

TEST(MoeOperator, RefusesInOneLine) {
  Case c{.name = "", .tokens = 2, .experts = 4, .hidden = 64, .intermediate = 64};
  const auto message = [](const auto& result) {
    return result.ok() ? std::string() : result.status().message();
  };
  EXPECT_EQ(
      message(Layer({.tokens = 2, .experts = 4, .hidden = 96, .intermediate = 64, .first = 1, .count = 4})
                  .prepare()),
      "moe: experts 1 to 4 of 4");
  EXPECT_NE(message(prepare_moe({.experts = 4, .hidden = 90, .intermediate = 64}, {}, {}, nullptr))
                .find("multiples of 32"),
            std::string::npos);
  EXPECT_EQ(message(prepare_moe({.experts = 4, .hidden = 64, .intermediate = 64}, {}, {}, nullptr)),
            "moe: w13 blocks is missing");
  const uint8_t host = 0;
  EXPECT_EQ(
      message(prepare_moe({.experts = 4, .hidden = 64, .intermediate = 64}, {.blocks = &host}, {}, nullptr)),
      "moe: w13 blocks is not in a GPU's memory");
  Layer broken(c);
  broken.w2.scales[7] = 255;
  EXPECT_EQ(message(broken.prepare()), "moe: w2 scales: one is NaN (255)");
  auto prepared = Layer(c).prepare();
  ASSERT_TRUE(prepared.ok());
  const MoeOperator& moe = *prepared.value();
  alignas(256) static std::byte memory[1024];
  EXPECT_TRUE(moe.run({}).ok());  // no tokens
  EXPECT_EQ(moe.run({.tokens = 1, .x = memory, .out = memory, .logits = memory + 512}).message(),
            "moe: out is x itself");
  EXPECT_EQ(moe.run({.tokens = 2, .x = memory, .out = memory + 128, .logits = memory + 512}).message(),
            "moe: out overlaps x");
  EXPECT_EQ(moe.run({.tokens = 1, .x = memory, .out = memory + 512, .logits = memory + 528}).message(),
            "moe: out overlaps logits");
  EXPECT_EQ(moe.run({.tokens = 1, .x = memory, .out = memory + 256}).message(),
            "moe: give either ids and weights, or logits");
  EXPECT_NE(moe.run({.tokens = 1,
                     .x = memory,
                     .out = memory + 256,
                     .logits = memory,
                     .workspace = memory,
                     .workspace_bytes = 1024})
                .message()
                .find("a workspace of 1024 bytes for 1 tokens"),
            std::string::npos);
  EXPECT_EQ(moe.workspace_bytes(4096), moe.workspace_bytes(1 << 20));
}

}  // namespace
}  // namespace moesaic
