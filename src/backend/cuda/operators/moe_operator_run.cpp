// The kernels of a call, and the memory for it.
#include <algorithm>

#include "backend/apart.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/operators/moe_operator_impl.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr int kChunkRows = 4096;  // tokens that are computed at a time: 0.4 GB of scratch for gpt-oss's sizes

}  // namespace

LayerExperts CudaMoeOperator::experts() const {
  return {.experts = options_.experts,
          .top_k = options_.top_k,
          .hidden = options_.hidden,
          .intermediate = options_.intermediate,
          .activation = {.alpha = options_.alpha, .limit = options_.limit, .offset = options_.offset},
          .slabs = slabs_,
          .wgmma = wgmma_,
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

// run_decode() chooses as many experts as a token has; where there are fewer, the split-K kernel, which
// is slower for few rows but takes them, does its work.
bool CudaMoeOperator::usable(const MoeKernelConfig& config, int rows) const {
  if (options_.experts >= options_.top_k) return takes(config, rows);
  if (config.kernel == MoeKernel::kSplitK) return takes(config, std::max(rows, config.least_tokens));
  return config.kernel != MoeKernel::kDecode && takes(config, rows);
}

// The quickest as estimated. An estimate takes up to 0.2 ms, so it is made once for a number of rows.
const MoeKernelConfig* CudaMoeOperator::config_for(int rows) const {
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = chosen_.try_emplace(rows);
  if (!fresh) return at->second;
  const LayerExperts e = experts();
  // The estimate is for all of the router's experts; its work, but not its start, is shared out among ranks.
  MoeShape shape = shape_of(e, rows);
  shape.experts = options_.routed_experts;
  const double share = static_cast<double>(options_.experts) / options_.routed_experts;
  const MoeKernelConfig* best = nullptr;
  double least = 0;
  for (const MoeKernelConfig& config : configs_of(e)) {
    if (!usable(config, rows)) continue;
    const double seconds = config.start + share * (expected_work(shape, config).seconds - config.start);
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
  w.empty = pieces.take<uint4>(slab_scratch_bytes(static_cast<int>(slab_rows)));
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

Status CudaMoeOperator::choose(const float* logits, int rows, const Workspace& w, cudaStream_t stream) const {
  return top_k({.logits = logits,
                .rows = rows,
                .experts = options_.routed_experts,
                .top_k = options_.top_k,
                .ids = w.scratch.ids,
                .weights = w.scratch.weights},
               stream);
}

Status CudaMoeOperator::run_rows(const MoeOperatorCall& call, const Workspace& w, int rows,
                                 const MoeKernelConfig& config, cudaStream_t stream) const {
  const LayerExperts e = experts();
  const bool decodes = config.kernel == MoeKernel::kDecode, from_logits = call.logits != nullptr;
  const bool chooses = from_logits && routes_all();  // true if the kernel takes the logits as they are
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
    take.empty_vectors = static_cast<int>(slab_scratch_bytes(1) / sizeof(uint4));
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
    RETURN_IF_ERROR(choose(w.logits, rows, w, stream));
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
    RETURN_IF_ERROR(run_decode(e,
                               {.x = static_cast<const __half*>(w.x),
                                .x_scale = ones_.as<float>(),
                                .logits = w.logits,
                                .residual = w.sums,
                                .out = w.sums,
                                .h = w.empty,
                                .rows = rows,
                                .fault = w.scratch.fault},
                               stream));
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

static Status check_apart(const MoeOperatorCall& c, const MoeOperatorOptions& o) {
  const int64_t bytes = product_of({c.tokens, o.hidden, 2});
  return moesaic::check_apart(
      "moe", {"out", c.out, bytes},
      {{"x", c.x, bytes},
       {"ids", c.ids, product_of({c.tokens, o.top_k, c.ids64 ? 8 : 4})},
       {"weights", c.weights, product_of({c.tokens, o.top_k, 4})},
       {"logits", c.logits,
        product_of({c.tokens, o.routed_experts, c.logits_type == ElementType::kF32 ? 4 : 2})}});
}

static Status check_call(const MoeOperatorCall& c, size_t wanted) {
  const auto aligned = [](const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  if (c.tokens < 0) return invalid("moe: {} tokens", c.tokens);
  if (c.type == ElementType::kF32) return invalid("moe: x and out are F16 or BF16, not F32");
  if (c.tokens == 0) return {};
  if (c.x == nullptr || c.out == nullptr) return invalid("moe: x or out is missing");
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
  RETURN_IF_ERROR(check_apart(call, options_));
  if (call.tokens == 0) return {};
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  const auto stream = static_cast<cudaStream_t>(call.stream);
  MoeOperatorCall part = call;
  ASSIGN_OR_RETURN(int* const fault, Workspaces::fault_word(options_.device, stream));
  RETURN_IF_ERROR(Workspaces::check_fault(fault));
  std::shared_ptr<Workspaces::Block> block;
  if (call.workspace == nullptr) {
    ASSIGN_OR_RETURN(block, workspaces_->get(options_.device, stream, workspace_bytes(call.tokens)));
    part.workspace = block->memory.as<void>();
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
    w.scratch.fault = fault;
    const MoeKernelConfig* const config = config_for(rows);
    if (config == nullptr) return no_kernel("moe", gate_up_, rows);
    RETURN_IF_ERROR(run_rows(part, w, rows, *config, stream));
  }
  return {};
}

}  // namespace moesaic::cuda
