// Packed panels in the host's memory become the bytes that the same weights have when they are loaded.
#include "backend/cuda/ops/expert_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>

#include "backend/cuda/ops/expert_weights.h"
#include "backend/cuda/ops/hot_slots.h"
#include "backend/cuda/weights/load.h"
#include "model/random_model.h"
#include "model/small_config_test.h"

namespace moesaic::cuda {
namespace {

// Experts that lie in memory as on a machine of two NUMA nodes.
class OnTwoNodes final : public HostExperts {
 public:
  explicit OnTwoNodes(std::unique_ptr<HostExperts> experts) : experts_(std::move(experts)) {}
  Result<int> add(const LayerShape& shape, const LayerWeights& weights, const LayerAdapter& adapter,
                  const std::string& name) override {
    return experts_->add(shape, weights, adapter, name);
  }
  Status ready() override { return experts_->ready(); }
  Status run(int layer, const RoutedRows& rows, float* out) override {
    return experts_->run(layer, rows, out);
  }
  std::optional<LayerPanels> panels(int layer) override {
    LayerPanels panels = *experts_->panels(layer);
    return LayerPanels{split(panels.gate_up), split(panels.down)};
  }
  double bytes() const override { return experts_->bytes(); }
  double read_bandwidth() override { return 0; }
  std::string name() const override { return "on two nodes"; }

 private:
  // Node 0 has one pair of each expert, node 1 the others.
  ExpertPanels split(const ExpertPanels& from) {
    ExpertPanels to = from;
    to.node_begins = {0, 1, from.pairs};
    to.data = rearrange(from, from.data, from.pair_bytes);
    to.scales = rearrange(from, from.scales, from.pair_scale_bytes);
    return to;
  }
  std::byte* rearrange(const ExpertPanels& from, const std::byte* source, int64_t pair_bytes) {
    std::vector<std::byte>& to = memory_.emplace_back(from.experts * from.pairs * pair_bytes);
    const int64_t rest = from.pairs - 1;
    for (int64_t e = 0; e < from.experts; ++e) {
      const std::byte* const expert = source + e * from.pairs * pair_bytes;
      std::memcpy(to.data() + e * pair_bytes, expert, pair_bytes);
      std::memcpy(to.data() + (from.experts + e * rest) * pair_bytes, expert + pair_bytes, rest * pair_bytes);
    }
    return to.data();
  }
  std::unique_ptr<HostExperts> experts_;
  std::deque<std::vector<std::byte>> memory_;
};

std::vector<std::byte> bytes_of(const DeviceBuffer& buffer) {
  return {buffer.as<std::byte>(), buffer.as<std::byte>() + buffer.bytes()};
}

// The same weights in every layer, of which the first one is on the device.
void expect_same_bytes(Format format, bool two_nodes) {
  const ModelConfig config = small_config(3);
  ModelWeights weights = make_random_model(config, {.experts = format});
  for (LayerWeights& layer : weights.layers) layer = weights.layers[0];
  BackendOptions options{.threads = 2};
  options.experts.host_layers = 2;
  std::unique_ptr<HostExperts> host = create_host_experts(options).value();
  if (two_nodes) host = std::make_unique<OnTwoNodes>(std::move(host));
  auto model = load_model(config, weights, options, {}, reinterpret_cast<cudaStream_t>(1), 2, host.get());
  ASSERT_EQ(model.status().message(), "");
  ASSERT_EQ(model.value().stream.count, 2);
  ExpertStream stream;
  ASSERT_EQ(stream.open(model.value(), *host, nullptr).message(), "");
  EXPECT_EQ(stream.locked_bytes(), 2 * stream.layer_bytes());
  ASSERT_TRUE(stream.seconds_a_layer().ok());
  const Layer& want = model.value().layers[0];
  for (const Layer& got : model.value().stream.layers) {
    EXPECT_EQ(bytes_of(got.gate_up.data), bytes_of(want.gate_up.data));
    EXPECT_EQ(bytes_of(got.gate_up.scales), bytes_of(want.gate_up.scales));
    EXPECT_EQ(bytes_of(got.down.data), bytes_of(want.down.data));
    EXPECT_EQ(bytes_of(got.down.scales), bytes_of(want.down.scales));
  }
}

TEST(ExpertStream, BringsWeightTiles) {
  expect_same_bytes(Format::kMxfp4, false);
  expect_same_bytes(Format::kMxfp4Gguf, false);
}

TEST(ExpertStream, BringsThemFromTwoNodes) { expect_same_bytes(Format::kMxfp4, true); }

// Only MXFP4 is brought; the CPU computes with other formats.
TEST(ExpertStream, HasNoRoomForOtherFormats) {
  const ModelConfig config = small_config(2);
  const ModelWeights weights = make_random_model(config, {.experts = Format::kBF16});
  std::unique_ptr<HostExperts> host = create_host_experts({.threads = 1}).value();
  auto model = load_model(config, weights, {}, {}, reinterpret_cast<cudaStream_t>(1), 1, host.get());
  ASSERT_EQ(model.status().message(), "");
  EXPECT_EQ(model.value().stream.count, 0);
  EXPECT_FALSE(host->panels(0).has_value());
}

TEST(ExpertStream, PiecesHaveWholeExperts) {
  const StreamPiece small = stream_piece(6, 1000, 100), large = stream_piece(128, 8'294'400, 518'400),
                    huge = stream_piece(4, size_t{64} << 20, 1 << 20);
  EXPECT_EQ(small.experts, 6);
  EXPECT_GE(small.bytes, 6u * 1100);
  EXPECT_EQ(large.experts, 3);
  EXPECT_LE(large.bytes, 32u << 20);
  EXPECT_EQ(huge.experts, 1);
  EXPECT_GE(huge.bytes, 65u << 20);
}

std::vector<std::byte> expert_of(const Matrix& m, const DeviceBuffer& buffer, int64_t expert) {
  const auto each = static_cast<int64_t>(buffer.bytes()) / m.experts;
  const auto* const from = buffer.as<std::byte>() + expert * each;
  return {from, from + each};
}
std::vector<float> biases_of(const DeviceBuffer& buffer, int64_t count, int64_t expert) {
  return {buffer.as<float>() + expert * count, buffer.as<float>() + (expert + 1) * count};
}

// The device's places have what the table says, before and after an exchange.
TEST(HotSlots, HaveTheExpertsOfTheTable) {
  const ModelConfig config = small_config(3);
  ModelWeights weights = make_random_model(config, {});
  for (LayerWeights& layer : weights.layers) layer = weights.layers[0];
  BackendOptions options{.threads = 2};
  options.experts = {.host_layers = 2, .stream_rows = ExpertPlacement::kNever, .hot = 2};
  std::unique_ptr<HostExperts> host = create_host_experts(options).value();
  const auto stream = reinterpret_cast<cudaStream_t>(1);
  auto loaded = load_model(config, weights, options, {}, stream, 2, host.get());
  ASSERT_EQ(loaded.status().message(), "");
  const LoadedModel& model = loaded.value();
  ExpertStream experts;
  ASSERT_TRUE(experts.open(model, *host, stream).ok());
  HotSlots hot;
  ExpertUse use(2, config.experts);
  use.begin_with(std::vector<uint32_t>{0, 0, 3, 0, 5, 0, 1, 1, 0, 0, 0, 0});
  ASSERT_TRUE(hot.open(model, experts, use, 8, stream).ok());
  const auto expect_right = [&](int layer) {
    const Layer &all = model.layers[0], &here = model.hot[static_cast<size_t>(layer)];
    int found = 0;
    for (int e = 0; e < config.experts; ++e) {
      const int32_t slot = hot.slots(layer)[e];
      if (slot < 0) continue;
      ++found;
      EXPECT_EQ(expert_of(here.gate_up, here.gate_up.data, slot),
                expert_of(all.gate_up, all.gate_up.data, e));
      EXPECT_EQ(expert_of(here.down, here.down.scales, slot), expert_of(all.down, all.down.scales, e));
      EXPECT_EQ(biases_of(here.up_bias, config.intermediate, slot),
                biases_of(all.up_bias, config.intermediate, e));
      EXPECT_EQ(biases_of(here.down_bias, config.hidden, slot), biases_of(all.down_bias, config.hidden, e));
    }
    EXPECT_EQ(found, 2);
  };
  expect_right(0), expect_right(1);
  EXPECT_EQ(hot.slots(1)[1], 1);
  EXPECT_EQ(hot.slots(0)[4], 0);
  EXPECT_EQ(hot.slots(0)[2], 1);
  use.count(1, std::vector<int32_t>(50, 4)), use.count(1, std::vector<int32_t>(20, 0));
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(hot.step(use).ok());
  EXPECT_EQ(hot.exchanges(), 1);
  EXPECT_EQ(hot.slots(1)[1], -1);
  EXPECT_EQ(hot.slots(1)[4], 1);
  EXPECT_EQ(hot.slots(1)[0], 0);
  expect_right(0), expect_right(1);
}

// Slabs have gpt-oss's own sizes: one expert, from rows as a file has them and from panels of the same.
TEST(ExpertStream, BringsSlabs) {
  constexpr int64_t kRows = slabs::kHidden;
  std::mt19937 rng(3);
  const auto fill = [&](size_t bytes, unsigned first, unsigned count) {
    std::vector<uint8_t> out(bytes);
    for (uint8_t& x : out) x = static_cast<uint8_t>(first + rng() % count);
    return out;
  };
  const auto size = static_cast<size_t>(kRows * kRows);
  const std::vector<uint8_t> codes[] = {fill(size / 2, 0, 256), fill(size / 2, 0, 256),
                                        fill(size / 2, 0, 256)},
                             scales[] = {fill(size / 32, 118, 9), fill(size / 32, 118, 9),
                                         fill(size / 32, 118, 9)};
  const auto view = [&](int i) {
    return ExpertsView{
        .first = dense_view(Format::kMxfp4, kRows, kRows, reinterpret_cast<const std::byte*>(codes[i].data()),
                            reinterpret_cast<const std::byte*>(scales[i].data())),
        .count = 1};
  };
  std::vector<float> bias(kRows);
  for (float& b : bias) b = static_cast<float>(rng() % 64);
  const MatrixView biases =
      dense_view(Format::kF32, 1, kRows, reinterpret_cast<const std::byte*>(bias.data()));
  std::unique_ptr<HostExperts> host = create_host_experts({.threads = 2}).value();
  const LayerShape shape{
      .hidden = slabs::kHidden, .experts = 1, .experts_per_token = 1, .intermediate = slabs::kHidden};
  const LayerWeights weights{.gate = view(0),
                             .up = view(1),
                             .down = view(2),
                             .gate_bias = biases,
                             .up_bias = biases,
                             .down_bias = biases};
  ASSERT_TRUE(host->add(shape, weights, {}, "layer 0").ok());
  const LayerPanels panels = *host->panels(0);
  const auto as_panels = [&](bool down, Panels which) {
    const ExpertPanels& m = down ? panels.down : panels.gate_up;
    return Raw{.format = Format::kMxfp4,
               .rows = kRows,
               .row_stride = m.pair_bytes,
               .scale_stride = m.pair_scale_bytes,
               .data = reinterpret_cast<const uint8_t*>(m.data),
               .scales = reinterpret_cast<const uint8_t*>(m.scales),
               .panels = which};
  };
  const auto as_rows = [&](int i) {
    return Raw{.format = Format::kMxfp4,
               .rows = kRows,
               .row_stride = kRows / 2,
               .scale_stride = kRows / 32,
               .data = codes[i].data(),
               .scales = scales[i].data()};
  };
  const slabs::SlabLayout layout = slabs::slab_layout(132);
  for (const bool down : {false, true}) {
    const size_t bytes = down ? layout.fc2_bytes() : layout.fc1_bytes();
    std::vector<uint8_t> want(bytes), got(bytes);
    int fault = 0;
    SlabParams p{.down = down,
                 .layout = layout,
                 .experts = 1,
                 .bias = {bias.data(), bias.data()},
                 .expert_bytes = bytes,
                 .fault = &fault};
    p.source[0] = as_rows(down ? 2 : 0), p.source[1] = as_rows(1), p.out = want.data();
    ASSERT_EQ(repack_weights(p, nullptr).message(), "");
    p.source[0] = as_panels(down, down ? Panels::kBoth : Panels::kFirst);
    p.source[1] = as_panels(down, Panels::kSecond), p.out = got.data();
    ASSERT_EQ(repack_weights(p, nullptr).message(), "");
    EXPECT_EQ(got, want) << (down ? "down" : "gate and up");
    EXPECT_EQ(fault, 0);
  }
}

}  // namespace
}  // namespace moesaic::cuda
