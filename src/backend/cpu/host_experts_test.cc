// The experts that another backend leaves to the host, against a plain loop in double.
#include "backend/host_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/relative_error_test.h"
#include "moe/work_list.h"

namespace moesaic {
namespace {

constexpr int kHidden = 64, kIntermediate = 96, kExperts = 6, kTopK = 3;

class Layer {
 public:
  explicit Layer(unsigned seed) : rng_(seed) {
    gate_ = values(kExperts * kIntermediate * kHidden, 0.2f),
    up_ = values(kExperts * kIntermediate * kHidden, 0.2f);
    down_ = values(kExperts * kHidden * kIntermediate, 0.2f);
    gate_bias_ = values(kExperts * kIntermediate, 1), up_bias_ = values(kExperts * kIntermediate, 1);
    down_bias_ = values(kExperts * kHidden, 1);
  }
  LayerWeights weights() const {
    return {.gate = stack(gate_, kIntermediate, kHidden),
            .up = stack(up_, kIntermediate, kHidden),
            .down = stack(down_, kHidden, kIntermediate),
            .gate_bias = matrix(gate_bias_, kExperts, kIntermediate),
            .up_bias = matrix(up_bias_, kExperts, kIntermediate),
            .down_bias = matrix(down_bias_, kExperts, kHidden)};
  }
  std::vector<float> values(size_t count, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> out(count);
    for (float& v : out) v = normal(rng_);
    return out;
  }
  // x += weight times the expert's output of u.
  void add(int e, const float* u, double weight, double* x) const {
    std::vector<double> h(kIntermediate);
    for (int i = 0; i < kIntermediate; ++i) {
      const int row = e * kIntermediate + i;
      double gate = gate_bias_[row], up = up_bias_[row];
      for (int c = 0; c < kHidden; ++c)
        gate += double{gate_[row * kHidden + c]} * u[c], up += double{up_[row * kHidden + c]} * u[c];
      gate = std::min(gate, 7.0), up = std::clamp(up, -7.0, 7.0);
      h[i] = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
    }
    for (int o = 0; o < kHidden; ++o) {
      double sum = down_bias_[e * kHidden + o];
      for (int i = 0; i < kIntermediate; ++i)
        sum += double{down_[(e * kHidden + o) * kIntermediate + i]} * h[i];
      x[o] += weight * sum;
    }
  }

 private:
  static MatrixView matrix(const std::vector<float>& v, int64_t rows, int64_t cols) {
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(v.data()));
  }
  static ExpertsView stack(const std::vector<float>& v, int64_t rows, int64_t cols) {
    return {.first = matrix(v, rows, cols), .count = kExperts, .data_stride = rows * cols * 4};
  }
  std::mt19937 rng_;
  std::vector<float> gate_, up_, down_, gate_bias_, up_bias_, down_bias_;
};

constexpr LayerShape kShape = {.hidden = kHidden,
                               .experts = kExperts,
                               .experts_per_token = kTopK,
                               .intermediate = kIntermediate,
                               .swiglu_alpha = 1.702,
                               .swiglu_limit = 7,
                               .swiglu_offset = 1};

struct Routed {
  std::vector<float> normed, weights;
  std::vector<int32_t> ids;
  RoutedRows rows() const {
    return {static_cast<int>(ids.size()) / kTopK, normed.data(), ids.data(), weights.data()};
  }
};
Routed route(Layer& random, int rows) {
  Routed r{.normed = random.values(static_cast<size_t>(rows * kHidden), 1),
           .weights = std::vector<float>(static_cast<size_t>(rows * kTopK)),
           .ids = std::vector<int32_t>(static_cast<size_t>(rows * kTopK))};
  for (int row = 0; row < rows; ++row)
    route_row(random.values(kExperts, 1), kTopK, &r.ids[static_cast<size_t>(row * kTopK)],
              &r.weights[static_cast<size_t>(row * kTopK)]);
  return r;
}

std::unique_ptr<HostExperts> experts(int threads) {
  auto made = create_host_experts({.threads = threads});
  EXPECT_EQ(made.status().message(), "");
  return std::move(made).value();
}

TEST(HostExperts, AgreeWithAPlainLoop) {
  Layer first(1), second(2);
  const auto host = experts(2);
  for (Layer* layer : {&first, &second}) ASSERT_TRUE(host->add(kShape, layer->weights(), {}, "layer").ok());
  ASSERT_TRUE(host->ready().ok());
  EXPECT_GT(host->bytes(), 2.0 * kExperts * 3 * kHidden * kIntermediate);
  for (const int rows : {1, 2, 7, 40}) {
    Layer& layer = rows % 2 == 1 ? first : second;
    const Routed routed = route(layer, rows);
    std::vector<float> out(routed.normed.size(), NAN);
    ASSERT_EQ(host->run(rows % 2 == 1 ? 0 : 1, routed.rows(), out.data()).message(), "");
    RelativeError error;
    for (int row = 0; row < rows; ++row) {
      double want[kHidden] = {};
      for (int k = 0; k < kTopK; ++k)
        layer.add(routed.ids[row * kTopK + k], &routed.normed[row * kHidden], routed.weights[row * kTopK + k],
                  want);
      for (int i = 0; i < kHidden; ++i) error.add(out[row * kHidden + i], want[i]);
    }
    EXPECT_LT(error.value(), 0.01) << rows << " rows";
  }
}

// Neither the batch nor the threads change a bit of a row.
TEST(HostExperts, RowsDoNotDependOnEachOther) {
  Layer layer(3);
  const Routed routed = route(layer, 24);
  std::vector<float> alone(routed.normed.size()), together(routed.normed.size());
  const auto one = experts(1), two = experts(2);
  for (HostExperts* host : {one.get(), two.get()}) {
    ASSERT_TRUE(host->add(kShape, layer.weights(), {}, "layer").ok());
    ASSERT_TRUE(host->ready().ok());
  }
  ASSERT_TRUE(two->run(0, routed.rows(), together.data()).ok());
  for (int row = 0; row < 24; ++row) {
    const RoutedRows single{1, &routed.normed[row * kHidden], &routed.ids[row * kTopK],
                            &routed.weights[row * kTopK]};
    ASSERT_TRUE(one->run(0, single, &alone[row * kHidden]).ok());
  }
  EXPECT_EQ(alone, together);
}

// Choices that somebody else computes add nothing, be they some of a row's, all of a row's or all.
TEST(HostExperts, OthersChoicesAreLeftOut) {
  Layer layer(6);
  const auto host = experts(2);
  ASSERT_TRUE(host->add(kShape, layer.weights(), {}, "layer").ok());
  ASSERT_TRUE(host->ready().ok());
  constexpr int kRows = 9;
  for (const int all_from : {kRows, 5, 0}) {
    Routed routed = route(layer, kRows);
    for (int i = 0; i < kRows * kTopK; ++i) {
      if (i % 4 == 1 || i / kTopK >= all_from) routed.ids[i] = -1 - routed.ids[i];
    }
    std::vector<float> out(routed.normed.size(), NAN);
    ASSERT_EQ(host->run(0, routed.rows(), out.data()).message(), "");
    RelativeError error{.size = 1e-30};  // all of it may be zero
    for (int row = 0; row < kRows; ++row) {
      double want[kHidden] = {};
      for (int k = row * kTopK; k < (row + 1) * kTopK; ++k) {
        if (routed.ids[k] >= 0)
          layer.add(routed.ids[k], &routed.normed[row * kHidden], routed.weights[k], want);
      }
      for (int i = 0; i < kHidden; ++i) error.add(out[row * kHidden + i], want[i]);
    }
    EXPECT_LT(error.value(), 0.01) << all_from;
  }
}

// Experts that come from the file when they are wanted are the same bits, whichever are in memory: steps of
// few rows, and of more experts than there are places.
TEST(HostExperts, HeldInPartGiveTheSameBits) {
  Layer first(8), second(9);
  const ModelWeights weights{.intact = [] { return Status(); }};
  const auto all = experts(2);
  for (Layer* layer : {&first, &second}) ASSERT_TRUE(all->add(kShape, layer->weights(), {}, "layer").ok());
  ASSERT_TRUE(all->ready().ok());
  EXPECT_EQ(all->reads(), "");
  for (const double share : {0.01, 0.67, 0.99}) {
    const auto part = experts(2);
    part->hold(share, weights);
    for (Layer* layer : {&first, &second}) ASSERT_TRUE(part->add(kShape, layer->weights(), {}, "layer").ok());
    ASSERT_EQ(part->ready().message(), "");
    EXPECT_NEAR(part->bytes() / all->bytes(), share < 0.1 ? 3 / 6.0 : share < 0.7 ? 4 / 6.0 : 5 / 6.0, 1e-9);
    EXPECT_NE(part->reads().find("from the model's file"), std::string::npos);
    EXPECT_FALSE(part->panels(0).has_value());
    for (const int rows : {1, 1, 2, 1, 40, 1, 3, 1, 7}) {
      const Routed routed = route(first, rows);
      std::vector<float> want(routed.normed.size()), got(routed.normed.size(), NAN);
      for (const int layer : {0, 1}) {
        ASSERT_TRUE(all->run(layer, routed.rows(), want.data()).ok());
        ASSERT_EQ(part->run(layer, routed.rows(), got.data()).message(), "");
        EXPECT_EQ(got, want) << share << " " << rows << " " << layer;
      }
    }
  }
}

// The step that wants them fails, and so do all that want them later; others go on.
TEST(HostExperts, AFileThatIsCutShortIsAnError) {
  Layer layer(10);
  bool whole = true;
  const ModelWeights weights{
      .intact = [&] { return whole ? Status() : Status(StatusCode::kIo, "the file was cut short"); }};
  const auto host = experts(2);
  host->hold(0.5, weights);
  ASSERT_TRUE(host->add(kShape, layer.weights(), {}, "layer").ok());
  ASSERT_TRUE(host->ready().ok());
  whole = false;
  Routed routed = route(layer, 1);
  std::vector<float> out(routed.normed.size());
  routed.ids = {0, 1, 2};  // in memory since the load
  EXPECT_TRUE(host->run(0, routed.rows(), out.data()).ok());
  routed.ids = {0, 1, 5};
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(host->run(0, routed.rows(), out.data()).message(), "the file was cut short");
}

TEST(HostExperts, AnIdOfNoExpertIsAnError) {
  Layer layer(4);
  const auto host = experts(1);
  ASSERT_TRUE(host->add(kShape, layer.weights(), {}, "layer").ok());
  ASSERT_TRUE(host->ready().ok());
  for (const int32_t wrong : {-kExperts - 1, kExperts}) {
    Routed routed = route(layer, 3);
    routed.ids[4] = wrong;
    std::vector<float> out(routed.normed.size());
    EXPECT_EQ(host->run(0, routed.rows(), out.data()).code(), StatusCode::kInternal);
  }
}

TEST(HostExperts, DamagedWeightsAreNamed) {
  Layer layer(5);
  std::vector<float> bad(kExperts * kHidden, NAN);
  LayerWeights weights = layer.weights();
  weights.down_bias.data = reinterpret_cast<const std::byte*>(bad.data());
  const auto added = experts(1)->add(kShape, weights, {}, "layer 7");
  EXPECT_NE(added.status().message().find("layer 7 down bias"), std::string::npos)
      << added.status().message();
}

}  // namespace
}  // namespace moesaic
