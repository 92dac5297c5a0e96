// The host's side of hand-overs, against a thread that does what the device's kernels do.
#include "backend/hand_over.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <random>
#include <vector>

#include "backend/delayed_experts.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRows = 3, kHidden = 8, kTopK = 2;

class Line {
 public:
  // Epochs are larger than this one.
  explicit Line(DelayedExperts& experts, uint32_t before = 0) : server_(begun(at_, before), experts) {}

  // Does what hand_over.cu's kernels do. False: the answer says that it failed, or is wrong.
  bool exchange(uint32_t epoch, int layer, int rows) {
    for (int i = 0; i < rows * kHidden; ++i) at_.normed[i] = static_cast<float>(epoch % 1024) + i;
    for (int i = 0; i < rows * kTopK; ++i) at_.ids[i] = i, at_.weights[i] = 1;
    at_.words->layer = layer, at_.words->rows = rows;
    std::atomic_ref(at_.words->posted).store(epoch, std::memory_order_release);
    const std::atomic_ref<uint32_t> answered(at_.words->answered);
    while (static_cast<int32_t>(answered.load(std::memory_order_acquire) - epoch) < 0)
      std::this_thread::yield();
    bool right = at_.words->failed == 0;
    for (int i = 0; i < rows * kHidden; ++i)
      right &= at_.out[i] == DelayedExperts::expected(layer, static_cast<float>(epoch % 1024) + i);
    return right;
  }
  HandOverServer& server() { return server_; }
  HandOver& at() { return at_; }

 private:
  static const HandOver& begun(const HandOver& at, uint32_t before) {
    at.words->posted = at.words->answered = before;
    return at;
  }
  struct alignas(128) Unit {
    std::byte bytes[128];
  };
  std::vector<Unit> memory_{hand_over_bytes(kRows, kHidden, kTopK) / sizeof(Unit)};
  HandOver at_ = hand_over_in(memory_.data()->bytes, kRows, kHidden, kTopK);
  HandOverServer server_;
};

TEST(HandOver, PlacesDoNotOverlap) {
  alignas(128) std::byte memory[4096];
  const HandOver at = hand_over_in(memory, 5, 36, 4);
  const auto offset = [&](const void* p) {
    return static_cast<size_t>(static_cast<const std::byte*>(p) - memory);
  };
  EXPECT_LE(sizeof(HandOverWords), offset(at.normed));
  EXPECT_LE(offset(at.normed) + 5 * 36 * 4, offset(at.out));
  EXPECT_LE(offset(at.out) + 5 * 36 * 4, offset(at.ids));
  EXPECT_LE(offset(at.ids) + 5 * 4 * 4, offset(at.weights));
  EXPECT_LE(offset(at.weights) + 5 * 4 * 4, hand_over_bytes(5, 36, 4));
}

// Steps of several hand-overs, with delays on either side, many of which are longer than the server is awake
// or than a wake-up takes. The epochs wrap around.
TEST(HandOver, NoneIsLost) {
  constexpr int kSteps = 25'000, kLayers = 4;
  DelayedExperts experts(1);
  uint32_t epoch = 0u - kSteps * kLayers / 2;
  Line line(experts, epoch);
  std::mt19937 rng(2);
  const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
  int steps = 0;
  for (; steps < kSteps && Clock::now() < end; ++steps) {
    line.server().expect(epoch + kLayers);
    for (int layer = 0; layer < kLayers; ++layer) {
      delay(rng);
      ASSERT_TRUE(line.exchange(++epoch, layer, 1 + static_cast<int>(rng() % kRows)))
          << steps << " " << layer;
    }
  }
  EXPECT_EQ(experts.runs(), steps * kLayers);
}

// Longer than the server is awake, on either side.
TEST(HandOver, AStallOnlyDelays) {
  DelayedExperts experts(8);
  Line line(experts);
  line.server().expect(3);
  experts.stall = std::chrono::seconds(1);
  EXPECT_TRUE(line.exchange(1, 0, 1));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  for (const uint32_t epoch : {2u, 3u}) EXPECT_TRUE(line.exchange(epoch, 0, 1));
  EXPECT_EQ(experts.runs(), 3);
}

// The next step is announced while this one still runs.
TEST(HandOver, TwoStepsInFlight) {
  DelayedExperts experts(3);
  Line line(experts);
  line.server().expect(2);
  for (uint32_t epoch = 1; epoch < 2000; ++epoch) {
    if (epoch % 2 == 0) line.server().expect(epoch + 2);
    ASSERT_TRUE(line.exchange(epoch, 0, 1));
  }
}

TEST(HandOver, AFailureIsAnAnswer) {
  DelayedExperts experts(4);
  Line line(experts);
  line.server().expect(3);
  EXPECT_TRUE(line.exchange(1, 0, 1));
  EXPECT_FALSE(line.exchange(2, DelayedExperts::kFailing, 1));
  EXPECT_TRUE(line.exchange(3, 0, 1));
  EXPECT_EQ(line.server().failure().message(), "it failed");
  EXPECT_TRUE(line.server().failure().ok());
}

// A step with a fault hands over no rows, and the experts are not asked.
TEST(HandOver, WithoutRowsThereIsNothingToDo) {
  DelayedExperts experts(5);
  Line line(experts);
  line.server().expect(1);
  EXPECT_TRUE(line.exchange(1, DelayedExperts::kFailing, 0));
  EXPECT_EQ(experts.runs(), 0);
}

double cpu_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}
// The CPU's part of so much time.
double share_of_cpu() {
  constexpr double kSeconds = 0.3;
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  return (cpu_seconds() - before) / kSeconds;
}

TEST(HandOver, NobodyPollsBetweenSteps) {
  DelayedExperts experts(6);
  Line line(experts);
  line.server().expect(1);
  EXPECT_TRUE(line.exchange(1, 0, 1));
  EXPECT_LT(share_of_cpu(), 0.1);
}

// A step that failed before its kernels were launched is forgotten; the one behind it is answered.
TEST(HandOver, AfterAStepThatDidNotCome) {
  DelayedExperts experts(7);
  Line line(experts);
  line.server().expect(8);
  line.server().forget();
  EXPECT_LT(share_of_cpu(), 0.1);
  line.server().expect(1026);
  for (const uint32_t epoch : {1025u, 1026u}) EXPECT_TRUE(line.exchange(epoch, 0, 1));
}

}  // namespace
}  // namespace moesaic
