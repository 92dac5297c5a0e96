#include "tuning/projection.h"

#include <algorithm>

#include "tuning/moe_kernels.h"

namespace moesaic {
namespace {

// Data sheets: 1 PFLOP/s of sparse FP4 is a quarter of that of dense FP8. GB10's clock is what that rate
// means at 1,024 multiply-adds a cycle and multiprocessor, which is RTX PRO 6000's. An RTX 5090 has half of
// that for sums in F32.
constexpr DeviceModel kDevices[] = {
    {"gb10", "GB10 (DGX Spark)", 273e9, 250e12, 48, 2.54e9},
    {"rtx-pro-6000", "RTX PRO 6000", 1792e9, 1008e12, 188, 2.617e9},
    {"rtx-5090", "RTX 5090", 1792e9, 419e12, 170, 2.407e9},
};

// Instructions of a warp for a weight tile of 32 rows and a quad of 128 columns, counted in sm_120a's machine
// code: the loop of the kernels for 8, 16 and 32 tokens (kernels/sm120/gemm_small_m.cuh).
constexpr double kFp4Loop[] = {161, 193, 261}, kFp8Loop[] = {111, 146, 210};
constexpr double kQuadMmas = 8;  // for each 8 tokens

// On an H200 (docs/lab): what plan.cpp has fitted to the experts' 8-token tile, norm and router
// included; and of dense layers lm_head's share of the bandwidth, and what QKV and the output projection take
// beyond it.
constexpr double kExpertsStart = 27e-6, kExpertsShare = 0.64, kDenseStart = 12e-6, kDenseShare = 0.84;

// Through the block-scaled MMA, `work_tiles` times.
void add_product(ProjectedOp& op, Format format, double rows, double cols, double work_tiles, int groups) {
  op.bytes += work_tiles * rows * cols * bits_per_element(format) / 8;
  const bool fp4 = is_mxfp4(format);
  if (!is_mx(format)) return;
  const double quads = work_tiles * rows / 32 * cols / 128;
  const int tile = groups == 1 ? 0 : groups == 2 ? 1 : 2;
  op.instructions += quads * (fp4 ? kFp4Loop : kFp8Loop)[tile];
  op.mmas += quads * kQuadMmas * (tile == 2 ? 4 : groups);
}

ProjectedOp dense_op(std::string_view name, int calls, Format format, double rows, double cols, int tokens) {
  ProjectedOp op{.name = name, .calls = calls, .start = kDenseStart, .share = kDenseShare};
  add_product(op, format, rows, cols, 1, (tokens + 7) / 8);
  return op;
}

}  // namespace

std::span<const DeviceModel> device_models() { return kDevices; }
const DeviceModel* find_device_model(std::string_view name) {
  const auto at = std::ranges::find(kDevices, name, &DeviceModel::name);
  return at == std::end(kDevices) ? nullptr : at;
}

std::vector<ProjectedOp> decode_ops(const ModelConfig& c, const ProjectedFormats& f, int tokens) {
  const MoeWork work = expected_work({.tokens = tokens,
                                      .top_k = c.experts_per_token,
                                      .experts = c.experts,
                                      .hidden = c.hidden,
                                      .intermediate = c.intermediate},
                                     {.tile = 8, .grain = 8, .bytes_per_second = 1, .flops_per_second = 1});
  ProjectedOp experts{.name = "moe", .calls = c.layers, .start = kExpertsStart, .share = kExpertsShare};
  add_product(experts, f.experts, 2.0 * c.intermediate, c.hidden, work.work_tiles, 1);
  add_product(experts, f.experts, c.hidden, c.intermediate, work.work_tiles, 1);
  add_product(experts, Format::kF32, c.experts, c.hidden, 1, 1);  // the router
  return {dense_op("qkv", c.layers, f.dense, c.q_size() + 2 * c.kv_size(), c.hidden, tokens),
          dense_op("project", c.layers, f.dense, c.hidden, c.q_size(), tokens), experts,
          dense_op("unembed", 1, f.head, c.vocab, c.hidden, tokens)};
}

double ProjectedTime::floor() const { return std::max({memory, issue, mma}); }

ProjectedTime projected_time(const ProjectedOp& op, const DeviceModel& d) {
  constexpr double kSchedulers = 4, kMmaFlops = 2.0 * 16 * 8 * 32;
  return {.memory = op.bytes / d.bytes_per_second,
          .issue = op.instructions / (kSchedulers * d.multiprocessors * d.clock),
          .mma = op.mmas * kMmaFlops / d.fp8_flops};
}

double as_on_hopper(const ProjectedOp& op, const DeviceModel& device) {
  ProjectedTime t = projected_time(op, device);
  t.memory /= op.share;
  return op.start + t.floor();
}

}  // namespace moesaic
