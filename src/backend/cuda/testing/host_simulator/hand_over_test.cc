// Hand-overs to the host's experts: both kernels in the simulator, and the server's own thread.
#include "backend/cuda/kernels/common/hand_over.cu"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <random>

#include "backend/cuda/testing/host_simulator/thread_block.h"
#include "backend/delayed_experts.h"

namespace moesaic::cuda {
namespace {

constexpr int kMostRows = 40, kHidden = 128, kTopK = 4;

class Device {
 public:
  explicit Device(bool served = true) {
    experts_.hidden = kHidden, experts_.top_k = kTopK;
    if (served) server_.emplace(at_, experts_);
    for (float& v : normed_) v = static_cast<float>(rng_() % 1000);
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<int32_t>(i % 7), weights_[i] = 0.25f;
  }
  // Steps of so many hand-overs, one after the other.
  void begin_step(int hand_overs) {
    epoch_ += kStep;
    if (server_) server_->expect(static_cast<uint32_t>(epoch_ + hand_overs - 1));
  }
  // The index-th hand-over of the step. True: x has what the experts add, and nothing else.
  bool exchange(int index, int layer, int rows) {
    std::vector<float> x(static_cast<size_t>(rows * kHidden));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    normed_[rng_() % normed_.size()] += 1;
    const HostLayer p{.at = at_,
                      .epoch = &epoch_,
                      .index = index,
                      .layer = layer,
                      .rows = rows,
                      .hidden = kHidden,
                      .top_k = kTopK,
                      .normed = normed_.data(),
                      .ids = ids_.data(),
                      .weights = weights_.data(),
                      .x = x.data(),
                      .arrived = &arrived_,
                      .fault = &fault_};
    run(p, [&] { hand_over_kernel(p); });
    delay(rng_);
    run(p, [&] { take_back_kernel(p); });
    bool right = arrived_ == 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float added = fault_ == 0 ? DelayedExperts::expected(layer, normed_[i]) : 0;
      right &= x[i] == static_cast<float>(i) + added;
    }
    return right;
  }
  int& fault() { return fault_; }
  DelayedExperts& experts() { return experts_; }
  HandOverServer& server() { return *server_; }
  std::mt19937& rng() { return rng_; }

 private:
  template <typename Kernel>
  static void run(const HostLayer& p, const Kernel& kernel) {
    EXPECT_TRUE(on_host::run_in_turn(grid_of(p), static_cast<int>(block_of(p).x), {}, kernel));
  }
  struct alignas(128) Unit {
    std::byte bytes[128];
  };
  static constexpr int32_t kStep = 1024;

  std::mt19937 rng_{17};
  std::vector<Unit> memory_{hand_over_bytes(kMostRows, kHidden, kTopK) / sizeof(Unit)};
  HandOver at_ = hand_over_in(memory_.data()->bytes, kMostRows, kHidden, kTopK);
  std::vector<float> normed_ = std::vector<float>(kMostRows * kHidden);
  std::vector<int32_t> ids_ = std::vector<int32_t>(kMostRows * kTopK);
  std::vector<float> weights_ = std::vector<float>(kMostRows * kTopK);
  int32_t epoch_ = 0;
  int arrived_ = 0, fault_ = 0;
  DelayedExperts experts_{5};
  std::optional<HandOverServer> server_;
};

TEST(HandOverKernels, RowsGoAndComeBack) {
  Device device;
  for (const int rows : {1, 2, 8, kCtas, kMostRows}) {
    device.begin_step(3);
    for (int index = 0; index < 3; ++index) EXPECT_TRUE(device.exchange(index, index + 1, rows)) << rows;
  }
  EXPECT_EQ(device.fault(), 0);
}

// Both sides are delayed at random. A machine that is busy otherwise gets through fewer steps.
TEST(HandOverKernels, NoneIsLost) {
  constexpr int kSteps = 25'000, kLayers = 4;
  Device device;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int steps = 0;
  for (; steps < kSteps && std::chrono::steady_clock::now() < end; ++steps) {
    device.begin_step(kLayers);
    delay(device.rng());
    for (int index = 0; index < kLayers; ++index) ASSERT_TRUE(device.exchange(index, index, 1)) << steps;
  }
  EXPECT_EQ(device.experts().runs(), steps * kLayers);
  EXPECT_EQ(device.fault(), 0);
}

// A step that has a fault already goes on to its end, and nothing is computed.
TEST(HandOverKernels, AFaultHandsNothingOver) {
  Device device;
  device.begin_step(2);
  device.fault() = 7;
  for (int index = 0; index < 2; ++index) EXPECT_TRUE(device.exchange(index, 0, 2));
  EXPECT_EQ(device.fault(), 7);
  device.fault() = 0;
  device.begin_step(1);
  EXPECT_TRUE(device.exchange(0, 0, 2));
  EXPECT_EQ(device.experts().runs(), 1);
}

TEST(HandOverKernels, AFailureIsAFault) {
  Device device;
  device.begin_step(2);
  EXPECT_TRUE(device.exchange(0, DelayedExperts::kFailing, 20));
  EXPECT_EQ(device.fault(), kHostFailed);
  EXPECT_EQ(device.server().failure().message(), "it failed");
  EXPECT_TRUE(device.exchange(1, 0, 1));
  EXPECT_EQ(device.fault(), kHostFailed);
}

TEST(HandOverKernels, AHostThatStallsOnlyDelays) {
  Device device;
  device.experts().stall = std::chrono::seconds(1);
  device.begin_step(2);
  for (int index = 0; index < 2; ++index) EXPECT_TRUE(device.exchange(index, 0, 1));
  EXPECT_EQ(device.fault(), 0);
}

TEST(HandOverKernels, GivesUp) {
  Device device(false);
  device.begin_step(1);
  EXPECT_TRUE(device.exchange(0, 0, 1));
  EXPECT_EQ(device.fault(), kHostAway);
}

// An answer that comes after its kernel gave up is not taken for the next one's.
TEST(HandOverKernels, ALateAnswerIsIgnored) {
  Device device;
  std::promise<void> gave_up;
  device.experts().held = gave_up.get_future();
  device.begin_step(1);
  EXPECT_TRUE(device.exchange(0, 3, 1));
  EXPECT_EQ(device.fault(), kHostAway);
  gave_up.set_value();
  device.server().forget();
  device.fault() = 0;
  device.begin_step(1);
  EXPECT_TRUE(device.exchange(0, 4, 1));
  EXPECT_EQ(device.fault(), 0);
}

}  // namespace
}  // namespace moesaic::cuda
