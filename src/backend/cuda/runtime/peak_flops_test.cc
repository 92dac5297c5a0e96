#include "backend/cuda/runtime/peak_flops.h"

#include <gtest/gtest.h>

namespace moesaic::cuda {
namespace {

// Data sheets, in TFLOP/s.
TEST(PeakFlops, AreThoseOfDataSheets) {
  struct Card {
    const char* name;
    int major, minor, multiprocessors;
    double gigahertz, sheet;
  };
  for (const Card& c : {Card{"NVIDIA A100-SXM4-80GB", 8, 0, 108, 1.41, 312},
                        {"NVIDIA GeForce RTX 3090", 8, 6, 82, 1.695, 71},
                        {"NVIDIA RTX A6000", 8, 6, 84, 1.8, 155},
                        {"NVIDIA GeForce RTX 4090", 8, 9, 128, 2.52, 165},
                        {"NVIDIA L40S", 8, 9, 142, 2.52, 362},
                        {"NVIDIA H200", 9, 0, 132, 1.98, 989},
                        {"NVIDIA B200", 10, 0, 148, 1.85, 2250},
                        {"NVIDIA GeForce RTX 5090", 12, 0, 170, 2.407, 209.5},
                        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 12, 0, 188, 2.617, 504}})
    EXPECT_NEAR(peak_flops(c.major, c.minor, c.name, c.multiprocessors, c.gigahertz * 1e9) / 1e12, c.sheet,
                0.02 * c.sheet)
        << c.name;
  EXPECT_EQ(peak_flops(13, 0, "another", 100, 1e9), 0);
}

}  // namespace
}  // namespace moesaic::cuda
