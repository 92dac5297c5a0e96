// How a step's experts are cut into jobs, and what that costs: arithmetic on any machine, for choosing a tile
// and for explaining the choice.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace moesaic {

// One MoE layer in a step. Routing is taken to be even: each token's top_k experts are equally likely.
struct MoeShape {
  int tokens = 0, top_k = 0, experts = 0, hidden = 0, intermediate = 0;
  double expert_bytes = 0;  // of one expert's weights
};

enum class MoeKernel {
  kDecode,       // kernels/sm90/moe_decode: the whole operator in one launch
  kSplit,        // kernels/sm90/gemm_split_k: mma.sync, the contraction split among warps
  kWide,         // kernels/sm90/gemm_wgmma: wgmma
  kTiles,        // gemm: mma.sync, any device and format
  kW4A8,         // kernels/sm120/: MXFP4 weights, MXFP8 activations
  kW4A8Prefill,  // the same with more rows to a thread block
};

// One way in which a device can run it. Which ways take a step depends on its tokens alone. Ways of one
// kernel give the same bits whatever their tile; another kernel may add in another order. The figures are
// fitted to measurements of the device: see docs/lab.
struct MoeWay {
  std::string_view name;
  MoeKernel kernel = MoeKernel::kTiles;
  int least_tokens = 1, most_tokens = 0;  // of a step; 0: any number
  int tile = 0;      // slots (pairs of token and expert) of a job at most; 0: all of an expert's
  int grain = 1;     // slots that the arithmetic of a job is rounded up to a multiple of
  double start = 0;  // seconds that pass whatever the size
  double bytes_per_second = 0, flops_per_second = 0;
};

// What is expected of one layer.
struct MoeWork {
  double experts = 0;  // that have tokens
  double jobs = 0;     // each reads its expert's weights once
  double slots = 0;    // that the arithmetic takes, padding included
  double seconds = 0;
};
inline bool takes(const MoeWay& way, int tokens) {
  return tokens >= way.least_tokens && (way.most_tokens == 0 || tokens <= way.most_tokens);
}
MoeWork expected_work(const MoeShape& shape, const MoeWay& way);

// The ways that take so many tokens, the quickest first.
struct MoeChoice {
  const MoeWay* way;
  MoeWork work;
};
std::vector<MoeChoice> rank_ways(const MoeShape& shape, std::span<const MoeWay> ways);

// What is compiled for Hopper: for experts in slabs (weights/slab_layout.h), and for all others.
std::span<const MoeWay> hopper_ways(bool slabs);
// Whether experts of these sizes can stand in slabs: those that kernels/sm90/moe_decode is written for.
bool slabs_take(const MoeShape& shape);

// What is compiled for SM120 and SM121 (kernels/sm120/gemm.h), and the same with the figures of a device that
// emulates it.
std::span<const MoeWay> w4a8_ways(bool emulated = false);

// What no way can beat: the weights of the experts that have tokens once, or the operations without padding.
double floor_seconds(const MoeShape& shape, double bytes_per_second, double flops_per_second);

}  // namespace moesaic
