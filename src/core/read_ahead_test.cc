#include "core/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace moesaic {
namespace {

// Every part once and in order, never more than one layer ahead of the one that is packed.
TEST(ReadAhead, StaysOneLayerAhead) {
  constexpr int kLayers = 20;
  std::atomic<int> packed{-1}, read{-2};
  ModelWeights weights;
  weights.layers.resize(kLayers);
  weights.prefetch = [&](int layer) {
    EXPECT_EQ(layer, read.load() + 1);
    EXPECT_LE(layer, packed.load() + 1);
    read = layer;
    read.notify_all();
  };
  const auto wait_for = [&](int layer) {
    for (int now = read; now < layer; now = read) read.wait(now);
  };
  ReadAhead read_ahead(weights);
  wait_for(0);
  for (int layer = 0; layer < kLayers; ++layer) {
    packed = layer;
    read_ahead.packing(layer);
    wait_for(std::min(layer + 1, kLayers - 1));
  }
}

// A load that fails leaves nobody waiting, and nothing is read once it is over.
TEST(ReadAhead, EndsEarly) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> last{-2};
    std::atomic<bool> over{false};
    ModelWeights weights;
    weights.layers.resize(5);
    weights.prefetch = [&](int layer) {
      EXPECT_FALSE(over);
      last = layer;
    };
    {
      ReadAhead read_ahead(weights);
      if (round % 2 == 0) read_ahead.packing(round % 6);
    }
    over = true;
    EXPECT_LE(last, round % 2 == 0 ? round % 6 + 1 : 0);
  }
}

std::ptrdiff_t threads() {
  using Tasks = std::filesystem::directory_iterator;
  return std::distance(Tasks("/proc/self/task"), Tasks());
}

const std::ptrdiff_t kAtStart = threads();

// The system counts a thread for a moment after it was joined.
std::ptrdiff_t threads_at_rest() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (threads() > kAtStart && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return threads();
}

TEST(ReadAhead, ASourceThatCannotNeedsNoThread) {
  ModelWeights weights;
  weights.layers.resize(5);
  const std::ptrdiff_t before = threads_at_rest();
  {
    ReadAhead read_ahead(weights);
    EXPECT_EQ(threads(), before);
    for (int layer = 0; layer < 5; ++layer) read_ahead.packing(layer);
  }
  weights.prefetch = [](int) {};
  ReadAhead read_ahead(weights);  // waits for the second layer to be packed
  EXPECT_EQ(threads(), before + 1);
}

}  // namespace
}  // namespace moesaic
