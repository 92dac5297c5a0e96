// A whole model by prepare_step() in the simulator, against the same model's steps in the backend: the same
// bits.
#include "model/step_operator_test.h"

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/testing/host_simulator/captures.h"
#include "model/small_config_test.h"

namespace moesaic::cuda {
namespace {

constexpr int kLayers = 3, kMaxRows = 32;

struct HostMemory {
  static void* allocate(size_t bytes) {
    on_host::captures().no_begin = true;  // launches run at once
    static std::vector<std::unique_ptr<std::byte[]>> all;
    return all.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  }
  static const std::byte* copy_to_device(const std::byte* data, size_t bytes) {
    static std::vector<DeviceBuffer> all;
    const DeviceBuffer& copy = all.emplace_back(DeviceBuffer::allocate(bytes, "weights").value());
    std::copy_n(data, bytes, copy.as<std::byte>());
    return copy.as<std::byte>();
  }
  static void wait() {}
  static Result<std::unique_ptr<Backend>> cuda_backend(const BackendOptions& options) {
    return create_cuda_backend(options);
  }
};
using Both = StepOperatorAndBackend<HostMemory>;

// A caller's tensors for one sequence from its first token on, in one page.
struct OneSequence {
  std::vector<int32_t> starts, tokens, pages;
  std::vector<int64_t> positions, slots;
  std::vector<uint16_t> out;
  OneSequence(int32_t page, std::vector<int32_t> of, size_t padding, int hidden)
      : starts{0, static_cast<int32_t>(of.size())}, tokens(std::move(of)), pages{page} {
    for (int64_t i = 0; i < std::ssize(tokens); ++i) positions.push_back(i), slots.push_back(32 * page + i);
    const size_t rows = tokens.size() + padding;
    tokens.resize(rows, -5), positions.resize(rows, int64_t{1} << 40), slots.resize(rows, -1);
    out.resize(rows * static_cast<size_t>(hidden));
  }
  Status run(StepOperator& op) {
    return op.run({.rows = static_cast<int>(tokens.size()),
                   .sequences = 1,
                   .host_starts = starts.data(),
                   .starts = starts.data(),
                   .tokens = tokens.data(),
                   .positions = positions.data(),
                   .full = {pages.data(), 1, slots.data()},
                   .sliding = {pages.data(), 1, slots.data()},
                   .longest = 32,
                   .out = out.data()});
  }
  bool finite() const {
    return std::ranges::all_of(out, [](uint16_t bf16) { return (bf16 & 0x7F80) != 0x7F80; });
  }
};

// Rows that decode and drafts of several rows.
TEST(StepOperator, DecodesAsTheBackendDoes) {
  Both both(small_config(kLayers), kMaxRows);
  for (const std::vector<int>& rows : std::vector<std::vector<int>>{
           {1}, {8, 1, 3}, {1, 1, 1, 1, 1, 1, 1, 1}, {0, 5, 0, 8}, {8, 8, 8, 8}, {1, 0, 0, 1}})
    EXPECT_EQ(both.step(rows), 0) << rows.size() << " sequences";
  for (int i = 0; i < 12; ++i) EXPECT_EQ(both.step({8, 1}), 0) << i;  // over several pages
}

// Prompts in tiles, the last of which is not full, beside rows that decode.
TEST(StepOperator, ReadsPromptsAsTheBackendDoes) {
  Both both(small_config(kLayers), kMaxRows);
  for (const std::vector<int>& rows :
       std::vector<std::vector<int>>{{20}, {1, 17, 9}, {1, 1, 16, 0, 14}, {8, 9, 1, 1}, {1, 1, 1, 1}})
    EXPECT_EQ(both.step(rows), 0) << rows.size() << " sequences";
}

TEST(StepOperator, PaddedRowsChangeNothing) {
  Both both(small_config(kLayers), kMaxRows);
  EXPECT_EQ(both.step({8, 8}), 0);
  for (const int padding : {1, 2, 7, 14}) EXPECT_EQ(both.step({1, 1}, padding), 0) << padding;
  EXPECT_EQ(both.step({3, 0, 1}, 4), 0);
  EXPECT_EQ(both.step({9, 1, 0, 12}, 5), 0);
}

// The step before has left infinite values of attention.
TEST(StepOperator, PaddingTakesNothingFromEarlierSteps) {
  const ModelConfig config = small_config(1);
  Both both(config, kMaxRows, 2, false, true);
  OneSequence infinite(5, std::vector<int32_t>(32, OverflowingValues::kToken), 0, config.hidden);
  EXPECT_EQ(infinite.run(both.op()).message(), "");
  EXPECT_FALSE(infinite.finite());
  for (const size_t tokens : {10, 20, 1}) {
    OneSequence padded(7, std::vector<int32_t>(tokens, 2), 32 - tokens, config.hidden);
    EXPECT_EQ(padded.run(both.op()).message(), "");
    EXPECT_TRUE(padded.finite()) << tokens;
  }
}

// The layer that was not launched would have cleared what the one before it has left.
TEST(StepOperator, AStepThatWasNotLaunchedWholeLeavesNothingToTheNext) {
  ModelConfig config = small_config(1);
  config.hidden = config.intermediate = 2880, config.experts = 4;
  ModelWeights weights = make_random_model(config, {});
  config.layers = 2, config.sliding.push_back(false);
  weights.layers.push_back(weights.layers[0]);
  auto made = prepare_step({.max_rows = 8, .max_sequences = 1, .max_context = 32}, config, weights);
  ASSERT_EQ(made.status().message(), "");
  StepOperator& op = *made.value();
  const size_t page = op.page_bytes();
  std::vector<std::byte> caches(2 * 4 * page);
  for (int layer = 0; layer < 2; ++layer)
    ASSERT_EQ(
        op.set_cache(layer, &caches[static_cast<size_t>(layer) * 4 * page], 2, static_cast<int64_t>(2 * page))
            .message(),
        "");
  on_host::captures().no_begin = true;
  on_host::captures().cooperative_left = 1;
  EXPECT_EQ(OneSequence(1, {5}, 0, config.hidden).run(op).message(), "too large");
  OneSequence next(1, {3}, 0, config.hidden), again(1, {3}, 0, config.hidden);
  EXPECT_EQ(next.run(op).message(), "");
  EXPECT_EQ(again.run(op).message(), "");
  EXPECT_EQ(next.out, again.out);
}

// In parts of at most so many rows, each sequence cut where they end.
TEST(StepOperator, LargeStepsRunInParts) {
  Both both(small_config(kLayers), 5);
  EXPECT_EQ(both.step({8, 7, 4}), 0);
  EXPECT_EQ(both.step({1, 1, 1}, 9), 0);
  EXPECT_EQ(both.step({1, 7, 1}, 13), 0);
  EXPECT_EQ(both.step({2, 8, 8, 8}), 0);
  Both tiles(small_config(kLayers), 13);
  EXPECT_EQ(tiles.step({11, 3, 18}), 0);
  EXPECT_EQ(tiles.step({1, 19, 1}), 0);
}

TEST(StepOperator, PagesMayStandFurtherApart) {
  Both both(small_config(kLayers), kMaxRows, 3);
  EXPECT_EQ(both.step({8, 6}), 0);
  EXPECT_EQ(both.step({1, 8}), 0);
}

TEST(StepOperator, TakesWeightsFromTheDevicesMemory) {
  Both both(small_config(kLayers), kMaxRows, 2, true);
  EXPECT_EQ(both.step({8, 14}), 0);
  EXPECT_EQ(both.step({1, 1}), 0);
}

// A caller's graph is replayed for other sequences of as many rows.
TEST(StepOperator, IsCapturedWithFewRowsOfASequence) {
  Both both(small_config(kLayers), kMaxRows);
  EXPECT_EQ(both.step({8, 8, 1}), 0);
  on_host::captures().id = 7;  // launches run at once all the same
  EXPECT_EQ(both.run({9, 1}).message(), "step: a captured one has at most 32 rows, and 8 of a sequence");
  EXPECT_EQ(both.run({8, 1}).message(), "");
  on_host::captures().id = 0;
}

// Captured steps hold the caches' addresses. In the simulator their launches run while they are captured.
TEST(StepOperator, ACacheThatMovesDropsCapturedSteps) {
  Both both(small_config(kLayers), kMaxRows);
  EXPECT_EQ(both.step({8, 8}), 0);
  EXPECT_EQ(both.step({1, 1}), 0);
  on_host::captures() = {};
  const int& captured = on_host::captures().executables;
  EXPECT_EQ(both.run({1, 1}).message(), "");
  EXPECT_EQ(captured, 1);
  const auto stride = static_cast<int64_t>(2 * both.op().page_bytes());
  std::vector<std::byte> cache(Both::kPages * static_cast<size_t>(stride));
  for (const int layer : {0, kLayers - 1}) {
    EXPECT_EQ(both.op().set_cache(layer, cache.data(), Both::kPages, stride).message(), "");
    EXPECT_EQ(captured, 0) << layer;
    EXPECT_EQ(both.run({1, 1}).message(), "");
    EXPECT_EQ(captured, 1);
    EXPECT_EQ(both.op().set_cache(layer, cache.data(), Both::kPages, stride).message(), "");
    EXPECT_EQ(captured, 1);  // it has not moved
  }
}

TEST(StepOperator, WhatAFaultLeavesInAPageHarmsNobody) {
  for (const int pitch : {2, 3}) {
    Both both(small_config(kLayers), kMaxRows, pitch, false, true);
    expect_that_a_fault_harms_nobody(both);
  }
}

TEST(StepOperator, NoPositionIsBeyondTheLongest) {
  Both both(small_config(kLayers), kMaxRows);
  expect_that_no_position_is_beyond_the_longest(both);
}

TEST(StepOperator, SaysWhatIsWrong) {
  Both both(small_config(kLayers), kMaxRows);
  const auto half = static_cast<int64_t>(both.op().page_bytes());
  std::vector<std::byte> cache(static_cast<size_t>(4 * half));
  const auto message = [](const Status& status) { return status.message(); };
  EXPECT_NE(message(both.op().set_cache(kLayers, cache.data(), 2, 2 * half)).find("layer 3 of 3"),
            std::string::npos);
  EXPECT_NE(message(both.op().set_cache(0, nullptr, 2, 2 * half)).find("missing"), std::string::npos);
  EXPECT_NE(message(both.op().set_cache(0, cache.data(), 2, 2 * half + 1)).find("multiple"),
            std::string::npos);
  EXPECT_NE(message(both.op().set_cache(1, cache.data(), 3, 2 * half)).find("others"), std::string::npos);
  int32_t starts[] = {0, 3, 2};
  const int32_t token = 0;
  const int64_t place = 0;
  StepOperatorCall call{.rows = 2, .sequences = 2, .host_starts = starts, .starts = starts, .tokens = &token};
  EXPECT_NE(message(both.op().run(call)).find("a tensor is missing"), std::string::npos);
  call.positions = &place, call.full = call.sliding = {&token, 1, &place}, call.out = cache.data();
  EXPECT_NE(message(both.op().run(call)).find("ascend"), std::string::npos);
  starts[1] = 1;
  call.longest = 1 << 20;
  EXPECT_NE(message(both.op().run(call)).find("context"), std::string::npos);
  call.sequences = 9;
  EXPECT_NE(message(both.op().run(call)).find("at most 8"), std::string::npos);
}

}  // namespace
}  // namespace moesaic::cuda
