#include "backend/cuda/ops/moe.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic::cuda {
namespace {

RouterShape router_shape(const LoadedModel& model, int rows) {
  const ModelConfig& c = model.config;
  return {.rows = rows,
          .hidden = c.hidden,
          .experts = c.experts,
          .top_k = c.experts_per_token,
          .slabs = model.slabs};
}

}  // namespace

LayerExperts experts_of(const LoadedModel& model, int index) {
  const ModelConfig& c = model.config;
  const Layer &layer = model.layers[index], &at = model.experts_at(index);
  return {.experts = c.experts,
          .top_k = c.experts_per_token,
          .hidden = c.hidden,
          .intermediate = c.intermediate,
          .activation = {.alpha = static_cast<float>(c.swiglu_alpha),
                         .limit = static_cast<float>(c.swiglu_limit)},
          .slabs = model.slabs,
          .wgmma = model.wgmma,
          .fp8 = model.fp8,
          .w4a8 = model.w4a8,
          .parts = model.parts,
          .emulated = model.emulated,
          .layout = model.slab_layout,
          .gate_up = &at.gate_up,
          .down = &at.down,
          .fc1_slabs = at.fc1_slabs.as<uint8_t>(),
          .fc2_slabs = at.fc2_slabs.as<uint8_t>(),
          .gate_bias = layer.gate_bias.as<float>(),
          .up_bias = layer.up_bias.as<float>(),
          .down_bias = layer.down_bias.as<float>(),
          .h_columns = layer.h_columns,
          .out_rows = layer.out_rows};
}

namespace {

// A host layer's, of those that are here as well.
LayerExperts hot_experts_of(const LoadedModel& model, int index) {
  const Layer& at = model.hot[static_cast<size_t>(index - model.host_from)];
  LayerExperts e = experts_of(model, index);
  e.experts = model.hot_experts;
  e.gate_up = &at.gate_up, e.down = &at.down;
  e.fc1_slabs = at.fc1_slabs.as<uint8_t>(), e.fc2_slabs = at.fc2_slabs.as<uint8_t>();
  e.gate_bias = at.gate_bias.as<float>(), e.up_bias = at.up_bias.as<float>(),
  e.down_bias = at.down_bias.as<float>();
  return e;
}

}  // namespace

std::span<const MoeKernelConfig> configs_of(const LoadedModel& model) {
  return configs_of(experts_of(model, 0));
}

std::vector<Wanted> Moe::buffers(const ModelConfig& config, int max_rows) {
  const size_t rows = max_rows;
  return {
      {&normed_f32_, rows * config.hidden * 4},
      {&router_logits_, rows * config.experts * 4},
      {&scratch_memory_, moe_scratch_bytes(config.experts, config.experts_per_token, config.hidden,
                                           config.intermediate, max_rows)},
  };
}

Status Moe::ready(const ModelConfig& config, int max_rows, int* fault, RankExchange& ranks) {
  scratch_ = moe_scratch(scratch_memory_.as<void>(), config.experts, config.experts_per_token, config.hidden,
                         config.intermediate, max_rows);
  scratch_.fault = fault;
  ranks_ = ranks.alone() ? nullptr : &ranks;
  ASSIGN_OR_RETURN(scratch_.hidden_of, ranks.of_ranks(scratch_.hidden));
  return {};
}

Status Moe::reset(const LoadedModel& model, cudaStream_t stream) const {
  for (const Layer& layer : model.layers) {
    const DeviceBuffer& h = layer.slab_hidden;
    if (h.bytes() > 0) RETURN_IF_ERROR(check(cudaMemsetAsync(h.as<void>(), 0xFF, h.bytes(), stream), "moe"));
  }
  return check(cudaMemsetAsync(scratch_.arrived, 0, sizeof(int), stream), "moe");
}

LayerExperts Moe::experts(const LoadedModel& model, int index) const {
  LayerExperts e = experts_of(model, index);
  e.ranks = ranks_;
  return e;
}

void Moe::prefer(std::vector<TunedStep> measured) {
  measured_ = std::move(measured);
  chosen_.clear(), chosen_hot_.clear();
}

const MoeKernelConfig& Moe::config_for(const LoadedModel& model, int rows) {
  const auto [at, fresh] = chosen_.try_emplace(rows);
  if (!fresh) return *at->second;
  const TunedStep* const step = nearest_step(measured_, rows);
  at->second = choose_config(shape_of(experts(model, 0), rows), configs_of(model),
                             step != nullptr ? std::string_view(step->config) : std::string_view());
  return *at->second;
}

Result<const MoeKernelConfig*> Moe::find_config(const LoadedModel& model, int rows, std::string_view name) {
  for (const MoeKernelConfig& kernel_config : configs_of(model)) {
    if (kernel_config.name == name && takes(kernel_config, rows)) return &kernel_config;
  }
  return invalid("no MoE kernel '{}' takes {} rows", name, rows);
}

Result<DeferredResidual> Moe::run(const LoadedModel& model, int index, const Norm& norm,
                                  const MoeKernelConfig& kernel_config, const Target& target,
                                  const RouterTrace& trace, cudaStream_t stream) {
  auto* logits = router_logits_.as<float>();
  const Router scores = router_of(model, index, norm.rows, logits);
  const Route routing = routing_of(experts(model, index), norm.rows, kernel_config.tile, logits, scratch_);
  ASSIGN_OR_RETURN(const RouterConfig* const config, select(router_shape(model, norm.rows), target));
  const bool chooses = config->kernel == RouterKernel::kChoose;
  RETURN_IF_ERROR(chooses ? run_choose(norm, scores, routing, stream)
                          : run_scores(*config, norm, scores, stream));
  if (trace) RETURN_IF_ERROR(trace_router(model.config, index, norm.rows, trace, stream));
  return chooses ? run_experts(model, index, norm, kernel_config, routing, stream)
                 : route_and_run(model, index, norm, kernel_config, routing, stream);
}

// For few rows: the only kernel for slabs that takes ids instead of logits.
const MoeKernelConfig& Moe::config_for_hot(const LoadedModel& model, int rows) {
  const auto [at, fresh] = chosen_hot_.try_emplace(rows);
  if (!fresh) return *at->second;
  const LayerExperts e = hot_experts_of(model, model.host_from);
  const std::span<const MoeKernelConfig> configs = configs_of(e);
  const auto split_k = std::ranges::find(configs, MoeKernel::kSplitK, &MoeKernelConfig::kernel);
  at->second =
      rows <= kSlabRows && split_k != configs.end() ? &*split_k : choose_config(shape_of(e, rows), configs);
  return *at->second;
}

Status Moe::run_on_host(const LoadedModel& model, int index, const Norm& norm, HostExchange& host,
                        const HotSlots& hot, const RouterTrace& trace, cudaStream_t stream) {
  const Router scores = router_of(model, index, norm.rows, router_logits_.as<float>());
  const Route routing = routing_of(experts(model, index), norm.rows, kSlabRows, scores.logits, scratch_);
  RETURN_IF_ERROR(score_normed(norm, scores, stream));
  if (trace) RETURN_IF_ERROR(trace_router(model.config, index, norm.rows, trace, stream));
  RETURN_IF_ERROR(top_k(routing, stream));
  const int layer = index - model.host_from;
  HostRows rows{
      .normed = scores.x, .ids = routing.ids, .weights = routing.weights, .x = norm.x, .rows = norm.rows};
  if (!hot.there()) return host.run(layer, rows, nullptr, stream);
  const LayerExperts e = hot_experts_of(model, index);
  const MoeKernelConfig& config = config_for_hot(model, norm.rows);
  Route here = routing_of(e, norm.rows, config.tile, nullptr, scratch_);
  here.ids = hot.ids();
  rows.hot_slots = hot.slots(layer), rows.hot_ids = here.ids;
  rows.expert_out = scratch_.out, rows.permuted_rows = here.permuted_rows;
  const auto meanwhile = [&]() -> Status {
    RETURN_IF_ERROR(list_work(here, stream));
    const ExpertRows x{.x = norm.out, .rows = norm.rows, .factor = norm.factor};
    return run_products(e, x, config, here, scratch_, stream);
  };
  return host.run(layer, rows, meanwhile, stream);
}

Status Moe::score_rows(const LoadedModel& model, int index, const Norm& norm, const Target& target,
                       float* logits, cudaStream_t stream) {
  RouterShape shape = router_shape(model, norm.rows);
  shape.scores_only = true;
  ASSIGN_OR_RETURN(const RouterConfig* const config, select(shape, target));
  return run_scores(*config, norm, router_of(model, index, norm.rows, logits), stream);
}

// Only time_moe() defers a residual to it: in a step QKV has added it. Every CTA of a row would add it in
// choose().
Status Moe::run_choose(const Norm& norm, const Router& scores, const Route& routing,
                       cudaStream_t stream) const {
  Norm added = norm;
  if (norm.deferred.expert_out != nullptr) {
    RETURN_IF_ERROR(cuda::norm(norm, stream));
    added.deferred = {};
  }
  return choose(added, scores, routing, scratch_.arrived, stream);
}

Status Moe::run_scores(const RouterConfig& config, const Norm& norm, Router scores,
                       cudaStream_t stream) const {
  if (config.kernel == RouterKernel::kScore) {
    // Only in time_moe(): in a step QKV has added it. score() does not.
    if (norm.deferred.expert_out != nullptr) RETURN_IF_ERROR(cuda::norm(norm, stream));
    return score(norm, scores, stream);
  }
  return score_normed(norm, scores, stream);
}

Status Moe::score_normed(Norm norm, const Router& scores, cudaStream_t stream) const {
  norm.out_f32 = normed_f32_.as<float>();
  RETURN_IF_ERROR(cuda::norm(norm, stream));
  return router(scores, stream);
}

Result<DeferredResidual> Moe::run_from_logits(const LoadedModel& model, int index, const Norm& norm,
                                              const MoeKernelConfig& kernel_config, const float* logits,
                                              cudaStream_t stream) {
  if (norm.deferred.expert_out != nullptr) RETURN_IF_ERROR(cuda::norm(norm, stream));
  return route_and_run(model, index, norm, kernel_config,
                       routing_of(experts(model, index), norm.rows, kernel_config.tile, logits, scratch_),
                       stream);
}

Result<DeferredResidual> Moe::route_and_run(const LoadedModel& model, int index, const Norm& norm,
                                            const MoeKernelConfig& kernel_config, const Route& routing,
                                            cudaStream_t stream) {
  if (!routes_itself(kernel_config, routing)) RETURN_IF_ERROR(route(routing, stream));
  return run_experts(model, index, norm, kernel_config, routing, stream);
}

Result<DeferredResidual> Moe::run_experts(const LoadedModel& model, int index, const Norm& norm,
                                          const MoeKernelConfig& kernel_config, const Route& routing,
                                          cudaStream_t stream) {
  if (kernel_config.kernel == MoeKernel::kDecode) {
    RETURN_IF_ERROR(run_decode(model, index, norm, routing.logits, stream));
    return DeferredResidual();
  }
  const ExpertRows rows{.x = norm.out, .rows = norm.rows, .factor = norm.factor};
  RETURN_IF_ERROR(run_products(experts(model, index), rows, kernel_config, routing, scratch_, stream));
  return DeferredResidual{.expert_out = scratch_.out,
                          .weights = routing.weights,
                          .permuted_rows = routing.permuted_rows,
                          .top_k = routing.top_k};
}

Router Moe::router_of(const LoadedModel& model, int index, int rows, float* logits) const {
  const Layer& layer = model.layers[index];
  return {.x = normed_f32_.as<float>(),
          .weight = layer.router.as<float>(),
          .bias = layer.router_bias.as<float>(),
          .logits = logits,
          .rows = rows,
          .hidden = model.config.hidden,
          .experts = model.config.experts};
}

// Adds to the residual by itself. Every layer has its own hidden buffer, which the next layer's launch
// clears.
Status Moe::run_decode(const LoadedModel& model, int index, const Norm& norm, const float* logits,
                       cudaStream_t stream) {
  const int layers = model.host_from;  // those with experts here
  const Layer& layer = model.layers[index];
  const Layer& before = model.layers[(index + layers - 1) % layers];
  const size_t clear = layer.slab_hidden.bytes();
  if (layers == 1)
    RETURN_IF_ERROR(check(cudaMemsetAsync(layer.slab_hidden.as<void>(), 0xFF, clear, stream), "moe"));
  return cuda::run_decode(experts(model, index),
                          {.x = static_cast<const __half*>(norm.out),
                           .x_scale = model.slab_scales.as<float>() + index * kSlabRows,
                           .logits = logits,
                           .residual = norm.x,
                           .out = norm.x,
                           .h = layer.slab_hidden.as<void>(),
                           .h_of = layer.slab_hidden_of,
                           .h_clear = before.slab_hidden.as<void>(),
                           .clear_bytes = layers == 1 ? 0 : clear,
                           .rows = norm.rows,
                           .fault = scratch_.fault},
                          stream);
}

Status Moe::trace_router(const ModelConfig& config, int layer, int rows, const RouterTrace& trace,
                         cudaStream_t stream) {
  const size_t experts = config.experts;
  std::vector<float> logits(rows * experts);
  RETURN_IF_ERROR(check(cudaMemcpyAsync(logits.data(), router_logits_.as<float>(),
                                        logits.size() * sizeof(float), cudaMemcpyDeviceToHost, stream),
                        "router trace"));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "router trace"));
  for (int row = 0; row < rows; ++row) trace(layer, row, std::span(logits).subspan(row * experts, experts));
  return {};
}

}  // namespace moesaic::cuda
