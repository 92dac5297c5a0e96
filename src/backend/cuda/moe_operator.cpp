// prepare_moe() of backend/moe_operator.h: a layer's experts alone.
#include "backend/moe_operator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/sm120/load_tile.h"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/moe_rows.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/ops/workspaces.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/weights/model.h"
#include "backend/cuda/weights/repack.h"
#include "backend/cuda/weights/repack_quads.h"
#include "base/error.h"

namespace moesaic {
namespace cuda {
namespace {

constexpr int kChunkRows = 4096;  // tokens that are computed at a time: 0.4 GB of scratch for gpt-oss's sizes

RowType row_type(ElementType type) {
  constexpr RowType kTypes[] = {RowType::kF32, RowType::kF16, RowType::kBF16};
  return kTypes[static_cast<int>(type)];
}

// The pieces of a caller's workspace, for so many rows.
struct Workspace {
  MoeScratch scratch;
  void* x = nullptr;         // [rows, hidden] as the kernels take it
  float* factors = nullptr;  // [rows]
  float* logits = nullptr;   // [rows, routed or own experts]
  float* sums = nullptr;     // [up to kSlabRows, hidden]
  uint4* empty = nullptr;    // sm90::moe_decode's scratch
};

class CudaMoeOperator final : public MoeOperator {
 public:
  explicit CudaMoeOperator(const MoeOperatorOptions& options) : options_(options) {
    if (options_.routed_experts == 0) options_.routed_experts = options.first_expert + options.experts;
    if (options_.limit == 0) options_.limit = std::numeric_limits<float>::infinity();
  }
  Status prepare(const MoeOperatorMatrix& gate_up, const MoeOperatorMatrix& down, cudaStream_t stream);

  const MoeOperatorOptions& options() const override { return options_; }
  size_t workspace_bytes(int64_t tokens) const override;
  size_t bytes() const override;
  std::string plan(int64_t tokens) const override;
  Status run(const MoeOperatorCall& call) const override;

 private:
  Status choose_layout();
  Status allocate_weights();
  Status load(const MoeOperatorMatrix& gate_up, const MoeOperatorMatrix& down, cudaStream_t stream);
  Status load_slabs(const Raw& gate, const Raw& up, const Raw& down, cudaStream_t stream);
  Status load_matrix(const Matrix& to, const Raw& first, const Raw& second, int fault, cudaStream_t stream);
  Status check_faults(cudaStream_t stream) const;
  Status warm_up(cudaStream_t stream) const;

  LayerExperts experts() const;
  bool routes_all() const {
    return options_.first_expert == 0 && options_.experts == options_.routed_experts;
  }
  bool usable(const MoeKernelConfig& config, int rows) const;
  const MoeKernelConfig* config_for(int rows) const;
  size_t deal(void* memory, int rows, Workspace& workspace) const;
  Status run_rows(const MoeOperatorCall& call, const Workspace& w, int rows, const MoeKernelConfig& config,
                  cudaStream_t stream) const;
  Status run_decode(const Workspace& w, int rows, cudaStream_t stream) const;

  std::shared_ptr<Workspaces> workspaces_ = Workspaces::shared();
  mutable std::mutex mutex_;                                        // of chosen_
  mutable std::unordered_map<int, const MoeKernelConfig*> chosen_;  // by rows
  MoeOperatorOptions options_;
  bool slabs_ = false, w4a8_ = false, emulated_ = false;
  sm90::SlabLayout layout_;
  Matrix gate_up_, down_;
  DeviceBuffer fc1_slabs_, fc2_slabs_, gate_bias_, up_bias_, down_bias_, ones_, faults_;
};

constexpr const char* kWeightNames[] = {"w13", "w2"};

// ---- preparing ----

Status check_sizes(const MoeOperatorOptions& o) {
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

Status on_device(const void* pointer, int device, const char* name) {
  if (pointer == nullptr) return invalid("moe: {} is missing", name);
  cudaPointerAttributes attributes{};
  RETURN_IF_ERROR(check(cudaPointerGetAttributes(&attributes, pointer), name));
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    return invalid("moe: {} is not in a GPU's memory", name);
  if (attributes.device != device)
    return invalid("moe: {} is on cuda:{}, not on cuda:{}", name, attributes.device, device);
  return {};
}
Status check_matrix(const MoeOperatorMatrix& m, int device, const char* blocks, const char* scales,
                    const char* bias) {
  RETURN_IF_ERROR(on_device(m.blocks, device, blocks));
  RETURN_IF_ERROR(on_device(m.scales, device, scales));
  return m.bias != nullptr ? on_device(m.bias, device, bias) : Status();
}

// Slabs need gpt-oss's own sizes and SwiGLU, and Hopper; quads SM12x; weight tiles serve the rest.
Status CudaMoeOperator::choose_layout() {
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, options_.device), "device"));
  const Target target = target_of(properties.major, properties.minor, {});
  const bool gpt_oss = options_.alpha == 1.702f && options_.offset == 1;
  const ExpertsShape shape{.mxfp4 = true,
                           .sizes = {.top_k = options_.top_k,
                                     .experts = options_.experts,
                                     .hidden = options_.hidden,
                                     .intermediate = options_.intermediate},
                           .swiglu_alpha = gpt_oss ? 1.702 : 0,
                           .swiglu_limit = options_.limit};
  ASSIGN_OR_RETURN(const ExpertsConfig* const config, select(shape, target));
  layout_ = device_layout(options_.device, 0);
  slabs_ = config->layout == ExpertsLayout::kSlabs && sm90::prepare_moe_decode(layout_).ok();
  w4a8_ = config->layout == ExpertsLayout::kQuads;
  if (!w4a8_) return {};
  RETURN_IF_ERROR(sm120::load_expert_tiles());
  emulated_ = properties.major != kBlockScaledMajor || sm120::emulates();
  return {};
}

Matrix matrix_of(int experts, int rows, int cols, RowOrder order, bool w4a8) {
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
    wanted.push_back({&fc1_slabs_, experts * sm90::kFc1Bytes});
    wanted.push_back({&fc2_slabs_, experts * sm90::kFc2Bytes});
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
Raw rows_of(const MoeOperatorMatrix& m, int64_t first, int64_t step, int rows) {
  return {.format = Format::kMxfp4,
          .rows = rows,
          .row_stride = step * m.block_row_stride,
          .scale_stride = step * m.scale_row_stride,
          .data = static_cast<const uint8_t*>(m.blocks) + first * m.block_row_stride,
          .scales = static_cast<const uint8_t*>(m.scales) + first * m.scale_row_stride,
          .expert_stride = m.block_expert_stride,
          .expert_scale_stride = m.scale_expert_stride};
}
BiasValues bias_of(const MoeOperatorMatrix& m, int64_t first, int64_t step, int rows, int experts,
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
  RETURN_IF_ERROR(repack_slabs({.source = {gate, up},
                                .down = false,
                                .layout = layout_,
                                .experts = options_.experts,
                                .bias = {gate_bias_.as<float>(), up_bias_.as<float>()},
                                .out = fc1_slabs_.as<uint8_t>(),
                                .expert_bytes = sm90::kFc1Bytes,
                                .fault = faults_.as<int>()},
                               stream));
  return repack_slabs({.source = {down, down},
                       .down = true,
                       .layout = layout_,
                       .experts = options_.experts,
                       .bias = {down_bias_.as<float>(), down_bias_.as<float>()},
                       .out = fc2_slabs_.as<uint8_t>(),
                       .expert_bytes = sm90::kFc2Bytes,
                       .fault = faults_.as<int>() + 1},
                      stream);
}

Status CudaMoeOperator::load_matrix(const Matrix& to, const Raw& first, const Raw& second, int fault,
                                    cudaStream_t stream) {
  const RepackParams p{.source = {first, second},
                       .kind = to.kind,
                       .order = to.order,
                       .head_dim = 0,
                       .rows = to.rows,
                       .weight_tiles = to.weight_tiles,
                       .blocks = to.cols / kBlock,
                       .experts = to.experts,
                       .data = to.data.as<uint8_t>(),
                       .scales = to.scales.as<uint8_t>(),
                       .tops = nullptr,
                       .fault = faults_.as<int>() + fault};
  return w4a8_ ? sm120::repack(p, stream) : repack(p, stream);
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
Status CudaMoeOperator::warm_up(cudaStream_t stream) const {
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
      call.logits = nullptr, call.ids = ids.as<void>(), call.weights = weights.as<float>();
      RETURN_IF_ERROR(run_rows(call, w, rows, config, stream));
      call.logits = logits.as<void>(), call.ids = nullptr;
      RETURN_IF_ERROR(run_rows(call, w, rows, config, stream));
      if (config.kernel != MoeKernel::kDecode) break;
    }
  }
  return check(cudaStreamSynchronize(stream), "the experts' first run");
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
  return options_.warm_up ? warm_up(stream) : Status();
}

// ---- running ----

LayerExperts CudaMoeOperator::experts() const {
  return {.experts = options_.experts,
          .top_k = options_.top_k,
          .hidden = options_.hidden,
          .intermediate = options_.intermediate,
          .activation = {.alpha = options_.alpha, .limit = options_.limit, .offset = options_.offset},
          .slabs = slabs_,
          .w4a8 = w4a8_,
          .emulated = emulated_,
          .layout = layout_,
          .gate_up = &gate_up_,
          .down = &down_,
          .fc1_slabs = fc1_slabs_.as<uint8_t>(),
          .fc2_slabs = fc2_slabs_.as<uint8_t>(),
          .gate_bias = gate_bias_.as<float>(),
          .up_bias = up_bias_.as<float>(),
          .down_bias = down_bias_.as<float>()};
}

// sm90::moe_decode chooses as many experts as a token has; where there are fewer, the split-K kernel, which
// is slower for few rows but takes them, does its work.
bool CudaMoeOperator::usable(const MoeKernelConfig& config, int rows) const {
  if (options_.experts >= options_.top_k) return takes(config, rows);
  if (config.kernel == MoeKernel::kSplitK) return rows <= config.most_tokens;
  return config.kernel != MoeKernel::kDecode && takes(config, rows);
}

// The quickest as estimated. An estimate takes up to 0.2 ms, so it is made once for a number of rows.
const MoeKernelConfig* CudaMoeOperator::config_for(int rows) const {
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = chosen_.try_emplace(rows);
  if (!fresh) return at->second;
  const LayerExperts e = experts();
  MoeShape shape = shape_of(e, rows);
  // Of the router's experts, a token's choices reach these.
  shape.tokens = std::max(1, static_cast<int>(int64_t{rows} * options_.experts / options_.routed_experts));
  const MoeKernelConfig* best = nullptr;
  double least = 0;
  for (const MoeKernelConfig& config : configs_of(e)) {
    if (!usable(config, rows)) continue;
    const double seconds = expected_work(shape, config).seconds;
    if (best == nullptr || seconds < least) best = &config, least = seconds;
  }
  return at->second = best;
}

size_t CudaMoeOperator::deal(void* memory, int rows, Workspace& w) const {
  const size_t hidden = options_.hidden;
  const size_t slab_rows = slabs_ ? static_cast<size_t>(std::min(rows, kSlabRows)) : 0;
  MemoryPieces pieces(memory);
  const size_t bytes =
      moe_scratch_bytes(options_.experts, options_.top_k, options_.hidden, options_.intermediate, rows);
  void* const scratch = pieces.take<void>(bytes);
  if (memory != nullptr)
    w.scratch =
        moe_scratch(scratch, options_.experts, options_.top_k, options_.hidden, options_.intermediate, rows);
  w.x = pieces.take<void>(rows * hidden * 2);
  w.factors = pieces.take<float>(rows * sizeof(float));
  w.logits = pieces.take<float>(static_cast<size_t>(rows) * options_.routed_experts * sizeof(float));
  w.sums = pieces.take<float>(slab_rows * hidden * sizeof(float));
  w.empty = pieces.take<uint4>(slab_rows * options_.top_k * options_.intermediate * 2);
  return pieces.bytes();
}

size_t CudaMoeOperator::workspace_bytes(int64_t tokens) const {
  Workspace w;
  return deal(nullptr, static_cast<int>(std::clamp<int64_t>(tokens, 1, kChunkRows)), w);
}

size_t CudaMoeOperator::bytes() const {
  size_t bytes = 0;
  for (const DeviceBuffer* b : {&fc1_slabs_, &fc2_slabs_, &gate_up_.data, &gate_up_.scales, &down_.data,
                                &down_.scales, &gate_bias_, &up_bias_, &down_bias_})
    bytes += b->bytes();
  return bytes;
}

std::string CudaMoeOperator::plan(int64_t tokens) const {
  const MoeKernelConfig* const config =
      config_for(static_cast<int>(std::clamp<int64_t>(tokens, 1, kChunkRows)));
  return fmt::format("{}, {}",
                     slabs_  ? "slabs"
                     : w4a8_ ? "quads"
                             : "weight tiles",
                     config != nullptr ? config->name : "no kernel");
}

// The whole operator in one launch, from w.logits; the sums go to w.sums.
Status CudaMoeOperator::run_decode(const Workspace& w, int rows, cudaStream_t stream) const {
  return sm90::moe_decode({.fc1 = fc1_slabs_.as<uint8_t>(),
                           .fc2 = fc2_slabs_.as<uint8_t>(),
                           .x = static_cast<const __half*>(w.x),
                           .x_scale = ones_.as<float>(),
                           .logits = w.logits,
                           .experts = options_.experts,
                           .residual = w.sums,
                           .out = w.sums,
                           .h = reinterpret_cast<__half*>(w.empty),
                           .h_clear = nullptr,
                           .clear_vectors = 0,
                           .tokens = rows,
                           .layout = layout_},
                          stream);
}

Status CudaMoeOperator::run_rows(const MoeOperatorCall& call, const Workspace& w, int rows,
                                 const MoeKernelConfig& config, cudaStream_t stream) const {
  const LayerExperts e = experts();
  const bool decodes = config.kernel == MoeKernel::kDecode, from_logits = call.logits != nullptr;
  const bool chooses = from_logits && routes_all();  // of the logits as they are
  TakenRows take{.rows = rows,
                 .factors = w.factors,
                 .cleared = w.scratch.arrived,
                 .x = call.x,
                 .x_type = row_type(call.type),
                 .x_out = w.x,
                 .bf16_out = w4a8_,
                 .hidden = options_.hidden};
  if (decodes) {
    take.sums = w.sums, take.empty = w.empty;
    take.empty_vectors = options_.top_k * options_.intermediate * 2 / 16;
  }
  if (from_logits) {
    take.logits = call.logits, take.logits_type = row_type(call.logits_type);
    take.logits_out = w.logits, take.logit_count = options_.routed_experts;
  }
  TakenRows choice{.rows = rows,
                   .factors = w.factors,
                   .has_factors = true,
                   .ids = w.scratch.ids,
                   .weights = w.scratch.weights};
  if (from_logits && !chooses) {
    RETURN_IF_ERROR(take_rows(take, stream));
    RETURN_IF_ERROR(top_k({.logits = w.logits,
                           .rows = rows,
                           .experts = options_.routed_experts,
                           .top_k = options_.top_k,
                           .ids = w.scratch.ids,
                           .weights = w.scratch.weights},
                          stream));
  } else {
    choice = take, choice.ids = call.ids, choice.ids64 = call.ids64, choice.weights = call.weights;
  }
  if (!chooses) {
    choice.first_expert = options_.first_expert, choice.experts = options_.experts;
    choice.top_k = options_.top_k;
    choice.local_ids = w.scratch.ids, choice.local_weights = w.scratch.weights;
    choice.permuted_rows = w.scratch.permuted_rows;
    choice.choice_logits = decodes ? w.logits : nullptr;
  }
  RETURN_IF_ERROR(take_rows(choice, stream));

  GivenRows give{.rows = rows,
                 .hidden = options_.hidden,
                 .top_k = options_.top_k,
                 .factors = w.factors,
                 .sums = decodes ? w.sums : nullptr,
                 .expert_out = w.scratch.out,
                 .weights = w.scratch.weights,
                 .permuted_rows = w.scratch.permuted_rows,
                 .out = call.out,
                 .type = row_type(call.type)};
  if (decodes) {
    RETURN_IF_ERROR(run_decode(w, rows, stream));
    return give_rows(give, stream);
  }
  const Route routing = routing_of(e, rows, config.tile, chooses ? w.logits : nullptr, w.scratch);
  if (!chooses) {
    RETURN_IF_ERROR(list_work(routing, stream));
  } else if (!routes_itself(config, routing)) {
    RETURN_IF_ERROR(route(routing, stream));
  }
  RETURN_IF_ERROR(run_products(e, {.x = w.x, .rows = rows}, config, routing, w.scratch, stream));
  return give_rows(give, stream);
}

Status check_call(const MoeOperatorCall& c, size_t wanted) {
  const auto aligned = [](const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  if (c.tokens < 0) return invalid("moe: {} tokens", c.tokens);
  if (c.type == ElementType::kF32) return invalid("moe: x and out are F16 or BF16, not F32");
  if (c.tokens == 0) return {};
  if (c.x == nullptr || c.out == nullptr) return invalid("moe: x or out is missing");
  if (c.x == c.out) return invalid("moe: out is x itself");
  if (!aligned(c.x, 16) || !aligned(c.out, 16)) return invalid("moe: x and out must be 16-byte aligned");
  if ((c.logits != nullptr) == (c.ids != nullptr && c.weights != nullptr))
    return invalid("moe: give either ids and weights, or logits");
  if (c.workspace != nullptr && (c.workspace_bytes < wanted || !aligned(c.workspace, kPieceAlignment)))
    return invalid("moe: a workspace of {} bytes for {} tokens, {} are needed, {}-byte aligned",
                   c.workspace_bytes, c.tokens, wanted, kPieceAlignment);
  return {};
}

Status CudaMoeOperator::run(const MoeOperatorCall& call) const {
  RETURN_IF_ERROR(check_call(call, workspace_bytes(call.tokens)));
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  const auto stream = static_cast<cudaStream_t>(call.stream);
  MoeOperatorCall part = call;
  if (call.workspace == nullptr && call.tokens > 0) {
    ASSIGN_OR_RETURN(part.workspace, workspaces_->get(options_.device, stream, workspace_bytes(call.tokens)));
  }
  for (int64_t done = 0; done < call.tokens; done += kChunkRows) {
    const int rows = static_cast<int>(std::min<int64_t>(kChunkRows, call.tokens - done));
    const auto at = [&](const void* from, int64_t row_bytes) {
      return from == nullptr ? nullptr : static_cast<const std::byte*>(from) + done * row_bytes;
    };
    part.x = at(call.x, int64_t{2} * options_.hidden);
    part.out = static_cast<std::byte*>(call.out) + done * 2 * options_.hidden;
    part.ids = at(call.ids, int64_t{options_.top_k} * (call.ids64 ? 8 : 4));
    part.weights = call.weights == nullptr ? nullptr : call.weights + done * options_.top_k;
    part.logits =
        at(call.logits, int64_t{options_.routed_experts} * (call.logits_type == ElementType::kF32 ? 4 : 2));
    Workspace w;
    deal(part.workspace, rows, w);
    const MoeKernelConfig* const config = config_for(rows);
    if (config == nullptr) return no_kernel("moe", gate_up_, rows);
    RETURN_IF_ERROR(run_rows(part, w, rows, *config, stream));
  }
  return {};
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<MoeOperator>> prepare_moe(const MoeOperatorOptions& options,
                                                 const MoeOperatorMatrix& gate_up,
                                                 const MoeOperatorMatrix& down, void* stream) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();
    return error(StatusCode::kUnsupported, "moe: {}", cuda_absent());
  }
  if (options.device < 0 || options.device >= devices)
    return invalid("moe: device cuda:{}: this machine has {}", options.device, devices);
  if (const std::string reason = cuda::no_code_for(options.device); !reason.empty())
    return error(StatusCode::kUnsupported, "moe: device cuda:{}: {}", options.device, reason);
  auto made = std::make_unique<cuda::CudaMoeOperator>(options);
  RETURN_IF_ERROR(made->prepare(gate_up, down, static_cast<cudaStream_t>(stream)));
  return std::unique_ptr<MoeOperator>(std::move(made));
}

}  // namespace moesaic
