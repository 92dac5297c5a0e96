// prepare_moe() of backend/moe_operator.h: a layer's experts alone.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/operators/moe_operator_impl.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic {
namespace cuda {

static constexpr const char* kWeightNames[] = {"w13", "w2"};

static Status check_sizes(const MoeOperatorOptions& o) {
  const auto bad = [](int value) { return value < 32 || value % 32 != 0 || value > 1 << 16; };
  if (bad(o.hidden) || bad(o.intermediate))
    return error(StatusCode::kUnsupported, "moe: sizes {} x {}: multiples of 32 up to 65,536 are supported",
                 o.intermediate, o.hidden);
  if (o.experts < 1 || o.experts > kMostRoutedExperts || o.routed_experts > kMostRoutedExperts)
    return error(StatusCode::kUnsupported, "moe: {} of {} experts: 1 to {} are supported", o.experts,
                 o.routed_experts, kMostRoutedExperts);
  if (o.first_expert < 0 || o.first_expert > o.routed_experts - o.experts)
    return invalid("moe: experts {} to {} of {}", o.first_expert, o.first_expert + o.experts - 1,
                   o.routed_experts);
  if (o.top_k < 1 || o.top_k > std::min(kMostRoutedTopK, o.routed_experts))
    return error(StatusCode::kUnsupported, "moe: top {} of {} experts: 1 to {} are supported", o.top_k,
                 o.routed_experts, std::min(kMostRoutedTopK, o.routed_experts));
  if (!std::isfinite(o.alpha) || !std::isfinite(o.offset) || !(o.limit > 0))
    return invalid("moe: alpha {}, limit {}, offset {}: finite numbers, limit above 0 (or 0: none)", o.alpha,
                   o.limit, o.offset);
  return {};
}

static Status check_matrix(const MoeOperatorMatrix& m, int device, const char* blocks, const char* scales,
                           const char* bias) {
  RETURN_IF_ERROR(check_on_device("moe", blocks, m.blocks, device));
  RETURN_IF_ERROR(check_on_device("moe", scales, m.scales, device));
  return m.bias != nullptr ? check_on_device("moe", bias, m.bias, device) : Status();
}

// Weight tiles serve what has no slabs or quads.
Status CudaMoeOperator::choose_layout() {
  ASSIGN_OR_RETURN(const Features features, features_of_device(options_.device));
  const Target target = target_of(features, {});
  const bool gpt_oss = options_.alpha == 1.702f && options_.offset == 1;
  const ExpertsShape shape{.mxfp4 = true,
                           .sizes = {.top_k = options_.top_k,
                                     .experts = options_.experts,
                                     .hidden = options_.hidden,
                                     .intermediate = options_.intermediate},
                           .swiglu_alpha = gpt_oss ? 1.702 : 0,
                           .swiglu_limit = options_.limit};
  ASSIGN_OR_RETURN(const ExpertsConfig* const config, select(shape, target));
  layout_ = slab_layout_of(options_.device, 0);
  slabs_ = config->layout == ExpertsLayout::kSlabs && prepare_slabs(layout_);
  wgmma_ = features.have(kWgmma);
  w4a8_ = config->layout == ExpertsLayout::kQuads;
  if (!w4a8_) return {};
  RETURN_IF_ERROR(load_quad_kernels(true, false));
  emulated_ = emulates_quads();
  return {};
}

static Matrix matrix_of(int experts, int rows, int cols, RowOrder order, bool w4a8) {
  return {.kind = w4a8 ? Kind::kMxfp4Quads : Kind::kMxfp4,
          .order = order,
          .rows = rows,
          .cols = cols,
          .weight_tiles = weight_tiles_of(rows),
          .experts = experts};
}

Status CudaMoeOperator::allocate_weights() {
  const size_t experts = options_.experts;
  gate_up_ = matrix_of(options_.experts, 2 * options_.intermediate, options_.hidden, RowOrder::kPairs, w4a8_);
  down_ = matrix_of(options_.experts, options_.hidden, options_.intermediate, RowOrder::kPlain, w4a8_);
  const size_t of_intermediate = experts * options_.intermediate * sizeof(float);
  std::vector<Wanted> wanted = {{&gate_bias_, of_intermediate},
                                {&up_bias_, of_intermediate},
                                {&down_bias_, experts * options_.hidden * sizeof(float)},
                                {&ones_, kSlabRows * sizeof(float)},
                                {&faults_, 2 * std::size(kWeightNames) * sizeof(int)}};
  if (slabs_) {
    wanted.push_back({&fc1_slabs_, experts * slabs::kFc1Bytes});
    wanted.push_back({&fc2_slabs_, experts * slabs::kFc2Bytes});
  } else {
    for (Matrix* m : {&gate_up_, &down_}) {
      const size_t tiles = experts * static_cast<size_t>(m->weight_tiles);
      wanted.push_back({&m->data, tiles * static_cast<size_t>(m->weight_tile_bytes())});
      wanted.push_back({&m->scales, tiles * static_cast<size_t>(m->weight_tile_scale_bytes())});
    }
  }
  return allocate(wanted, "the experts");
}

// Rows `first`, `first` + `step`, ...
static Raw rows_of(const MoeOperatorMatrix& m, int64_t first, int64_t step, int rows) {
  return {.format = Format::kMxfp4,
          .rows = rows,
          .row_stride = step * m.block_row_stride,
          .scale_stride = step * m.scale_row_stride,
          .data = static_cast<const uint8_t*>(m.blocks) + first * m.block_row_stride,
          .scales = static_cast<const uint8_t*>(m.scales) + first * m.scale_row_stride,
          .expert_stride = m.block_expert_stride,
          .expert_scale_stride = m.scale_expert_stride};
}
static BiasValues bias_of(const MoeOperatorMatrix& m, int64_t first, int64_t step, int rows, int experts,
                          const DeviceBuffer& out, int* fault) {
  const int64_t bytes = m.bias_type == ElementType::kF32 ? 4 : 2;
  return {.from = m.bias != nullptr ? static_cast<const std::byte*>(m.bias) + first * bytes : nullptr,
          .type = row_type(m.bias_type),
          .stride = step,
          .expert_stride = m.bias_expert_stride,
          .count = rows,
          .experts = experts,
          .out = out.as<float>(),
          .fault = fault};
}

Status CudaMoeOperator::load(const MoeOperatorMatrix& gate_up, const MoeOperatorMatrix& down,
                             cudaStream_t stream) {
  const int half = options_.intermediate, experts = options_.experts;
  const int64_t step = options_.interleaved ? 2 : 1, second = options_.interleaved ? 1 : half;
  int* const bias_faults = faults_.as<int>() + std::size(kWeightNames);
  RETURN_IF_ERROR(take_bias(bias_of(gate_up, 0, step, half, experts, gate_bias_, bias_faults), stream));
  RETURN_IF_ERROR(take_bias(bias_of(gate_up, second, step, half, experts, up_bias_, bias_faults), stream));
  RETURN_IF_ERROR(
      take_bias(bias_of(down, 0, 1, options_.hidden, experts, down_bias_, bias_faults + 1), stream));
  const std::vector<float> ones(kSlabRows, 1.0f);
  RETURN_IF_ERROR(
      check(cudaMemcpyAsync(ones_.as<void>(), ones.data(), ones_.bytes(), cudaMemcpyHostToDevice, stream),
            "the experts"));
  const Raw gate = rows_of(gate_up, 0, step, half), up = rows_of(gate_up, second, step, half),
            out = rows_of(down, 0, 1, options_.hidden);
  if (slabs_) return load_slabs(gate, up, out, stream);
  RETURN_IF_ERROR(load_matrix(gate_up_, gate, up, 0, stream));
  return load_matrix(down_, out, out, 1, stream);
}

Status CudaMoeOperator::load_slabs(const Raw& gate, const Raw& up, const Raw& down, cudaStream_t stream) {
  RETURN_IF_ERROR(repack_weights(SlabParams{.source = {gate, up},
                                            .down = false,
                                            .layout = layout_,
                                            .experts = options_.experts,
                                            .bias = {gate_bias_.as<float>(), up_bias_.as<float>()},
                                            .out = fc1_slabs_.as<uint8_t>(),
                                            .expert_bytes = slabs::kFc1Bytes,
                                            .fault = faults_.as<int>()},
                                 stream));
  return repack_weights(SlabParams{.source = {down, down},
                                   .down = true,
                                   .layout = layout_,
                                   .experts = options_.experts,
                                   .bias = {down_bias_.as<float>(), down_bias_.as<float>()},
                                   .out = fc2_slabs_.as<uint8_t>(),
                                   .expert_bytes = slabs::kFc2Bytes,
                                   .fault = faults_.as<int>() + 1},
                        stream);
}

Status CudaMoeOperator::load_matrix(const Matrix& to, const Raw& first, const Raw& second, int fault,
                                    cudaStream_t stream) {
  return repack_weights(repacking_of(to, first, second, faults_.as<int>() + fault), stream);
}

Status CudaMoeOperator::check_faults(cudaStream_t stream) const {
  int faults[2 * std::size(kWeightNames)] = {};
  RETURN_IF_ERROR(
      check(cudaMemcpyAsync(faults, faults_.as<void>(), sizeof(faults), cudaMemcpyDeviceToHost, stream),
            "the experts"));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "the experts"));
  for (size_t i = 0; i < std::size(kWeightNames); ++i) {
    if (faults[i] != 0) return invalid("moe: {} scales: one is NaN (255)", kWeightNames[i]);
    if (faults[std::size(kWeightNames) + i] != 0)
      return invalid("moe: {} bias: a value is not finite", kWeightNames[i]);
  }
  return {};
}

// Every kernel once: what is loaded late is loaded now, and not while a stream is captured.
Status CudaMoeOperator::warm_up(int* fault, cudaStream_t stream) const {
  constexpr int kRows = 16;
  const size_t bytes = size_t{kRows} * options_.hidden * 2,
               scores = size_t{kRows} * options_.routed_experts * sizeof(float),
               choices = size_t{kRows} * options_.top_k * sizeof(float);
  DeviceBuffer x, out, logits, ids, weights, memory;
  RETURN_IF_ERROR(allocate({{&x, bytes},
                            {&out, bytes},
                            {&logits, scores},
                            {&ids, choices},
                            {&weights, choices},
                            {&memory, workspace_bytes(kRows)}},
                           "the experts' first run"));
  MoeOperatorCall call{.x = x.as<void>(), .out = out.as<void>()};
  for (const MoeKernelConfig& config : configs_of(experts())) {
    for (const int rows : {kRows, 1, 2, 4, 8}) {
      if (!usable(config, rows)) continue;
      Workspace w;
      deal(memory.as<void>(), rows, w);
      w.scratch.fault = fault;
      call.logits = nullptr, call.ids = ids.as<void>(), call.weights = weights.as<float>();
      RETURN_IF_ERROR(run_rows(call, w, rows, config, stream));
      call.logits = logits.as<void>(), call.ids = nullptr;
      RETURN_IF_ERROR(run_rows(call, w, rows, config, stream));
      if (config.kernel != MoeKernel::kDecode) break;
    }
  }
  // Calls of more rows than these, or of ranges.
  Workspace w;
  deal(memory.as<void>(), kRows, w);
  RETURN_IF_ERROR(choose(logits.as<float>(), kRows, w, stream));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "the experts' first run"));
  return Workspaces::check_fault(fault);
}

Status CudaMoeOperator::prepare(const MoeOperatorMatrix& gate_up, const MoeOperatorMatrix& down,
                                cudaStream_t stream) {
  RETURN_IF_ERROR(check_sizes(options_));
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(check_matrix(gate_up, options_.device, "w13 blocks", "w13 scales", "w13 bias"));
  RETURN_IF_ERROR(check_matrix(down, options_.device, "w2 blocks", "w2 scales", "w2 bias"));
  RETURN_IF_ERROR(choose_layout());
  RETURN_IF_ERROR(allocate_weights());
  RETURN_IF_ERROR(load(gate_up, down, stream));
  RETURN_IF_ERROR(check_faults(stream));
  ASSIGN_OR_RETURN(int* const fault, Workspaces::fault_word(options_.device, stream));
  return options_.warm_up ? warm_up(fault, stream) : Status();
}

}  // namespace cuda

Result<std::unique_ptr<MoeOperator>> prepare_moe(const MoeOperatorOptions& options,
                                                 const MoeOperatorMatrix& gate_up,
                                                 const MoeOperatorMatrix& down, void* stream) {
  RETURN_IF_ERROR(check_cuda_device("moe", options.device));
  auto made = std::make_unique<cuda::CudaMoeOperator>(options);
  RETURN_IF_ERROR(made->prepare(gate_up, down, static_cast<cudaStream_t>(stream)));
  return std::unique_ptr<MoeOperator>(std::move(made));
}

}  // namespace moesaic
