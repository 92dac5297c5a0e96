// The kernels that are compiled for a step's experts, what each is expected to take, and the choice among
// them: arithmetic on any machine.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace moesaic {

// One MoE layer in a step. Routing is taken to be even: each token's top_k experts are equally likely.
struct MoeShape {
  int tokens = 0, top_k = 0, experts = 0, hidden = 0, intermediate = 0;
  double expert_bytes = 0;  // bytes of one expert's weights
};

enum class MoeKernel {
  kDecode,       // kernels/sm90/moe_decode: the whole operator in one launch
  kSplitK,       // kernels/sm90/gemm_split_k: mma.sync, the contraction split among warps
  kWgmma,        // kernels/sm90/gemm_wgmma
  kWgmmaFp8,     // the same with activations in E4M3
  kMma,          // kernels/sm90/gemm_mma: gemm_wgmma's tiles by mma.sync
  kGemm,         // gemm() of ops/linear.h: mma.sync, any device and format
  kGemmFp8,      // the same with MXFP4 weights and activations in E4M3
  kW4A8,         // kernels/sm120/: MXFP4 weights, MXFP8 activations
  kW4A8Prefill,  // the same with more rows to a CTA
};

// A compiled kernel, and a fit of its time. Whether it takes a step depends on the step's tokens alone. A
// kernel gives the same bits whatever its tile; another kernel may add in another order. The figures are
// fitted to measurements of the device: see docs/lab.
//
// Rows are permuted so that those of an expert, one for each pair of token and expert, stand together; a work
// tile is a piece of them, which reads its expert's weights once.
struct MoeKernelConfig {
  std::string_view name;
  MoeKernel kernel = MoeKernel::kGemm;
  int least_tokens = 1, most_tokens = 0;  // a step's; 0: any number
  int tile = 0;                           // permuted rows of a work tile at most; 0: all of an expert's
  int grain = 1;     // rows that the arithmetic of a work tile is rounded up to a multiple of
  double start = 0;  // seconds that pass whatever the size
  double bytes_per_second = 0, flops_per_second = 0;
};

// The work that one layer is expected to have.
struct MoeWork {
  double experts = 0;  // experts that have tokens
  double work_tiles = 0;
  double padded_rows = 0;  // rows that the arithmetic takes
  double seconds = 0;
};
inline bool takes(const MoeKernelConfig& config, int tokens) {
  return tokens >= config.least_tokens && (config.most_tokens == 0 || tokens <= config.most_tokens);
}
MoeWork expected_work(const MoeShape& shape, const MoeKernelConfig& config);

// Those that take so many tokens, the quickest first.
struct RankedConfig {
  const MoeKernelConfig* config;
  MoeWork work;
};
std::vector<RankedConfig> rank_configs(const MoeShape& shape, std::span<const MoeKernelConfig> configs);
// The quickest of them; instead the one that was the quickest when measured, if that takes so many tokens.
// Null where none does.
const MoeKernelConfig* choose_config(const MoeShape& shape, std::span<const MoeKernelConfig> configs,
                                     std::string_view measured = {});

// The kernels for experts in slabs (layout/slab_layout.h), of devices with wgmma or without; and those for
// all others, which every device has. fp8: the ones that take many rows in E4M3.
std::span<const MoeKernelConfig> sm90_configs(bool slabs, bool fp8 = false, bool wgmma = true);
// True if experts of these sizes can stand in slabs: those that kernels/sm90/moe_decode is written for.
bool slabs_take(const MoeShape& shape);

// The kernels for SM120 and SM121 (kernels/sm120/gemm.h), and the same ones with the figures of a device that
// emulates it. parts: MXFP8 values of an activation, 1 or 2.
std::span<const MoeKernelConfig> w4a8_configs(int parts, bool emulated = false);

// The time that no kernel can beat: the weights of the experts that have tokens once, or the operations
// without padding.
double floor_seconds(const MoeShape& shape, double bytes_per_second, double flops_per_second);

}  // namespace moesaic
