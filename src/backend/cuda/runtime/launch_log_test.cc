#include "backend/cuda/runtime/launch_log.h"

#include <gtest/gtest.h>

namespace moesaic::cuda {
namespace {

TEST(LaunchLog, KernelsHaveReadableNames) {
  EXPECT_EQ(readable_kernel("_ZN7moesaic4cuda19gemm_small_m_kernelINS0_10Bf16SourceELi1ENS0_6SwiGluEEEvNS0_"
                            "10GemmParamsET1_"),
            "gemm_small_m_kernel<Bf16Source, 1, SwiGlu>");
  EXPECT_EQ(readable_kernel("_ZN7moesaic4cuda5sm12027block_scaled_small_m_kernelILNS1_7ElementE0ELi4ELi2ENS1_"
                            "8SwiGluMxEEEvNS1_7ProductET2_"),
            "block_scaled_small_m_kernel<E2M1, 4, 2, SwiGluMx>");
  EXPECT_EQ(
      readable_kernel("_ZN7moesaic4cuda4sm9012_GLOBAL__N_117moe_decode_kernelILi132EEEvNS0_9MoeDecodeE"),
      "moe_decode_kernel<132>");
}

}  // namespace
}  // namespace moesaic::cuda
