// The ops of a layer against the reference's, on layers of several forms: what a model whose layers differ,
// or a draft head, asks of them.
#include "backend/cpu/layer_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>

#include "backend/cpu/layer_loader.h"
#include "backend/reference/layer_ops.h"
#include "base/relative_error_test.h"

namespace moesaic::cpu {
namespace {

constexpr int kHidden = 64, kPages = 4;

struct Form {
  const char* name;
  LayerShape shape;
  bool biases = true, adapter = false;
  int inputs = kHidden;  // columns of Q, K and V
};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

// Random weights in F32, so that only the cache rounds.
class RandomLayer {
 public:
  explicit RandomLayer(const Form& form) {
    const LayerShape& s = form.shape;
    const int experts = std::max(1, s.experts);
    weights.q = matrix(s.q_size(), form.inputs), weights.k = matrix(s.kv_size(), form.inputs);
    weights.v = matrix(s.kv_size(), form.inputs), weights.o = matrix(kHidden, s.q_size());
    weights.gate = stack(experts, s.intermediate, kHidden),
    weights.up = stack(experts, s.intermediate, kHidden);
    weights.down = stack(experts, kHidden, s.intermediate);
    if (s.experts > 0)
      weights.router = matrix(s.experts, kHidden), weights.router_bias = matrix(1, s.experts);
    if (form.biases) {
      weights.q_bias = matrix(1, s.q_size()), weights.k_bias = matrix(1, s.kv_size());
      weights.v_bias = matrix(1, s.kv_size()), weights.o_bias = matrix(1, kHidden);
      weights.sinks = matrix(1, s.heads);
      weights.gate_bias = matrix(experts, s.intermediate), weights.up_bias = matrix(experts, s.intermediate);
      weights.down_bias = matrix(experts, kHidden);
    }
    if (form.adapter) {
      constexpr int kRank = 32;
      adapter.gate_up = {stack(experts, kRank, kHidden), stack(experts, 2 * s.intermediate, kRank)};
      adapter.down = {stack(experts, kRank, s.intermediate), stack(experts, kHidden, kRank)};
    }
  }
  std::vector<float> vector(size_t size) {
    std::vector<float> out(size);
    for (float& v : out) v = normal_(rng_);
    return out;
  }

  LayerWeights weights;
  LayerAdapter adapter;

 private:
  MatrixView matrix(int64_t rows, int64_t cols) {
    std::vector<float>& values = storage_.emplace_back(vector(static_cast<size_t>(rows * cols)));
    for (float& v : values) v /= std::sqrt(static_cast<float>(cols));
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(values.data()));
  }
  ExpertsView stack(int experts, int64_t rows, int64_t cols) {
    MatrixView all = matrix(experts * rows, cols);
    all.rows = rows;
    return {.first = all, .count = experts, .data_stride = rows * cols * static_cast<int64_t>(sizeof(float))};
  }

  std::mt19937 rng_{5};
  std::normal_distribution<float> normal_;
  std::deque<std::vector<float>> storage_;
};

class LayerOpsForms : public testing::TestWithParam<Form> {
 protected:
  // The layer's output of rows that stand at positions 0, 1, ... of two sequences, of which `wanted` are
  // attended to; by the cpu, and by the reference.
  struct Outputs {
    std::vector<float> got, want;
  };
  Outputs run(std::span<const int> wanted) {
    const Form& form = GetParam();
    RandomLayer random(form);
    const std::vector<int32_t> pages[] = {{2, 0}, {3, 1}};
    std::vector<LayerRow> rows, attended;
    for (int i = 0; i < 80; ++i)
      rows.push_back(
          {.position = i / 2, .begin = std::min(i % 2 * 3, i / 2), .pages = pages[i % 2], .query = i});
    for (const int row : wanted) attended.push_back(rows[static_cast<size_t>(row)]);
    const std::vector<float> u = random.vector(rows.size() * static_cast<size_t>(form.inputs)),
                             normed = random.vector(wanted.size() * kHidden);
    Outputs out{.got = random.vector(normed.size())};
    out.want = out.got;

    const RopeTable rope = make_rope_table({}, form.shape.head_dim);
    reference::Layer plain{form.shape, random.weights, random.adapter, rope,
                           reference::make_cache(form.shape, kPageTokens, kPages).value()};
    reference::project(plain, reference::attend(plain, attended, reference::qkv(plain, rows, u, {}).q),
                       out.want, {});
    reference::add_mlp(form.shape, random.weights, random.adapter, normed, out.want, {});

    const Kernels& kernels = *available_kernels().front();
    ThreadPool pool(2);
    const ChosenTuning chosen;
    LayerOps ops(kernels, pool, chosen, MoePath::kAuto);
    EXPECT_TRUE(ops.make_room(256, form.adapter).ok());
    Layer layer;
    const LayerLoader loader(kernels, pool, [](const MatrixView&) { return std::nullopt; });
    EXPECT_EQ(loader.load(form.shape, random.weights, random.adapter, "layer", layer).message(), "");
    layer.kv = KvCache::allocate(kPages, form.shape.kv_heads, form.shape.head_dim).value();
    ops.turn(rope, form.shape.head_dim, rows);
    EXPECT_TRUE(ops.qkv(layer, rows, u.data()));
    ops.attend(layer, attended);
    ops.project(layer, static_cast<int>(std::ssize(attended)), out.got.data());
    EXPECT_TRUE(ops.mlp(layer, static_cast<int>(std::ssize(attended)), normed.data(), out.got.data()).ok());
    return out;
  }
};

const LayerShape kDense = {.hidden = kHidden, .heads = 4, .kv_heads = 2, .head_dim = 32, .intermediate = 96};
LayerShape with_experts(int experts, int top_k, int window) {
  LayerShape s = kDense;
  s.window = window, s.experts = experts, s.experts_per_token = top_k, s.intermediate = 64;
  s.swiglu_alpha = 1.702, s.swiglu_limit = 7, s.swiglu_offset = 1;
  return s;
}
LayerShape with_offset() {
  LayerShape s = kDense;
  s.swiglu_alpha = 1.3, s.swiglu_limit = 2, s.swiglu_offset = 1, s.window = 7;
  return s;
}
INSTANTIATE_TEST_SUITE_P(
    Layers, LayerOpsForms,
    testing::Values(Form{"dense", kDense, false}, Form{"of_a_head", kDense, false, false, 2 * kHidden},
                    Form{"dense_with_biases", with_offset(), true, true},
                    Form{"four_experts", with_experts(4, 2, 0)},
                    Form{"eight_experts_in_a_window", with_experts(8, 3, 5), true, true}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(LayerOpsForms, AgreeWithTheReference) {
  std::vector<int> all(80);
  for (int i = 0; i < 80; ++i) all[static_cast<size_t>(i)] = i;
  const Outputs out = run(all);
  EXPECT_LT(relative_error(out.got, out.want), 0.01);
}

// A draft head wants the output of some rows only, in an order of its own.
TEST_P(LayerOpsForms, SomeRowsAreAttendedTo) {
  const Outputs out = run(std::vector<int>{79, 3, 40});
  EXPECT_LT(relative_error(out.got, out.want), 0.01);
}

// A router has fewer pairs of panels than a machine has threads: rows are shared among them, and no bit
// changes.
TEST(Products, ThreadsShareTheRowsOfAFewPanels) {
  constexpr int kRows = 200, kCols = 64, kOutputs = 48;
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kOutputs * kCols), x(kRows * kCols);
  for (float& v : weights) v = normal(rng);
  for (float& v : x) v = normal(rng);
  const MatrixView view =
      dense_view(Format::kF32, kOutputs, kCols, reinterpret_cast<const std::byte*>(weights.data()));
  const Kernels& kernels = *available_kernels().front();
  const ChosenTuning chosen;
  const auto product = [&](int threads) {
    ThreadPool pool(threads);
    Products products(kernels, pool, chosen, MoePath::kAuto);
    EXPECT_TRUE(products.make_room(kCols, false).ok());
    const PackedMatrix m = pack_panels(Format::kF32, kCols, stack({&view}), "router", kernels, pool).value();
    std::vector<float> out(kRows * kOutputs, -1);
    products.linear(m, x.data(), kRows, {.out = out.data(), .stride = kOutputs, .width = kOutputs});
    return out;
  };
  const std::vector<float> want = product(1);
  for (const int threads : {2, 5, 16}) EXPECT_EQ(product(threads), want) << threads;
  for (const auto& [row, output] : {std::pair{0, 0}, {33, 47}, {199, 17}}) {
    double sum = 0;
    for (int c = 0; c < kCols; ++c) sum += double{x[row * kCols + c]} * weights[output * kCols + c];
    EXPECT_NEAR(want[row * kOutputs + output], sum, 1e-4);
  }
}

TEST(Products, TokensAreSharedOnlyWherePairsAreFew) {
  EXPECT_EQ(tokens_at_a_time(16, 1, 512, 64), 32);  // the 20b's router
  EXPECT_EQ(tokens_at_a_time(16, 4, 512, 64), 32);  // the 120b's
  EXPECT_EQ(tokens_at_a_time(16, 4, 4096, 64), 256);
  EXPECT_EQ(tokens_at_a_time(16, 90, 512, 64), 512);  // the output projection
  EXPECT_EQ(tokens_at_a_time(2, 160, 2048, 64), 2048);
  EXPECT_EQ(tokens_at_a_time(64, 1, 1, 64), 32);
  // Rows that are too long for the second cache together.
  EXPECT_EQ(tokens_at_a_time(16, 160, 512, 5824), 192);
  EXPECT_EQ(tokens_at_a_time(16, 90, 512, 8256), 128);
  EXPECT_EQ(tokens_at_a_time(8, 160, 512, 8256), 256);
  EXPECT_EQ(tokens_at_a_time(2, 160, 512, 8256), 512);
  EXPECT_EQ(tokens_at_a_time(64, 160, 1, 1 << 24), 32);
}

}  // namespace
}  // namespace moesaic::cpu
