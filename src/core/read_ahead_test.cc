#include "core/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

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

// A load that fails leaves nobody waiting.
TEST(ReadAhead, EndsEarly) {
  for (int round = 0; round < 200; ++round) {
    ModelWeights weights;
    weights.layers.resize(5);
    weights.prefetch = [](int) {};
    ReadAhead read_ahead(weights);
    if (round % 2 == 0) read_ahead.packing(round % 6);
  }
}

TEST(ReadAhead, OfASourceThatCannotNeedsNoThread) {
  ModelWeights weights;
  weights.layers.resize(5);
  ReadAhead read_ahead(weights);
  for (int layer = 0; layer < 5; ++layer) read_ahead.packing(layer);
}

}  // namespace
}  // namespace moesaic
