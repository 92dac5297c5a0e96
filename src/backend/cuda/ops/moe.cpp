#include "backend/cuda/ops/moe.h"

#include <cstdlib>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm90/gemm_split_k.h"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

MoeShape shape_of(const LoadedModel& model, int rows) {
  const ModelConfig& c = model.config;
  return {.tokens = rows,
          .top_k = c.experts_per_token,
          .experts = c.experts,
          .hidden = c.hidden,
          .intermediate = c.intermediate,
          .expert_bytes = (model.layers[0].gate_up.bytes() + model.layers[0].down.bytes()) / c.experts};
}

RouterShape router_shape(const LoadedModel& model, int rows) {
  const ModelConfig& c = model.config;
  return {.rows = rows,
          .hidden = c.hidden,
          .experts = c.experts,
          .top_k = c.experts_per_token,
          .slabs = model.slabs};
}

sm120::Tile tile_of(const MoeKernelConfig& kernel_config) {
  using sm120::Tile;
  if (kernel_config.kernel == MoeKernel::kW4A8Prefill) return Tile::kPrefill;
  for (const Tile tile : {Tile::k8, Tile::k16, Tile::k32, Tile::k64}) {
    if (kernel_config.tile <= sm120::tile_tokens(tile)) return tile;
  }
  return Tile::k128;
}

}  // namespace

std::span<const MoeKernelConfig> configs_of(const LoadedModel& model) {
  return model.w4a8 ? w4a8_configs(model.emulated) : sm90_configs(model.slabs);
}

std::vector<Wanted> Moe::buffers(const ModelConfig& config, int max_rows) {
  const size_t rows = max_rows, pairs = rows * config.experts_per_token;
  const size_t tiles = sm90::tile_tokens(pairs, config.experts);
  const auto room = [&](int cols) {
    return std::max(tiles * cols * 2, sm120::token_buffer_bytes(pairs, config.experts, cols));
  };
  return {
      {&normed_f32_, rows * config.hidden * 4},
      {&router_logits_, rows * config.experts * 4},
      {&expert_ids_, pairs * 4},
      {&expert_weights_, pairs * 4},
      {&permuted_rows_, pairs * 4},
      {&source_rows_, pairs * 4},
      {&work_tiles_, (pairs + config.experts) * sizeof(WorkTile)},
      {&work_tile_count_, sizeof(int)},
      {&tiles_, room(config.hidden)},
      {&hidden_, room(config.intermediate)},
      {&out_, pairs * std::max(config.hidden * 4, config.intermediate * 2)},
      {&arrived_, sizeof(int)},
  };
}

void Moe::prefer(std::vector<TunedStep> measured) {
  measured_ = std::move(measured);
  chosen_.clear();
}

const MoeKernelConfig& Moe::config_for(const LoadedModel& model, int rows) {
  const auto [at, fresh] = chosen_.try_emplace(rows);
  if (!fresh) return *at->second;
  const TunedStep* const step = nearest_step(measured_, rows);
  at->second = choose_config(shape_of(model, rows), configs_of(model),
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
  const Route routing = routing_of(model, norm.rows, kernel_config.tile, logits);
  ASSIGN_OR_RETURN(const RouterConfig* const config, select(router_shape(model, norm.rows), target));
  const bool chooses = config->kernel == RouterKernel::kChoose;
  RETURN_IF_ERROR(chooses ? run_choose(norm, scores, routing, stream)
                          : run_scores(*config, norm, scores, stream));
  if (trace) RETURN_IF_ERROR(trace_router(model.config, index, norm.rows, trace, stream));
  return chooses ? run_experts(model, index, norm, kernel_config, routing, stream)
                 : route_and_run(model, index, norm, kernel_config, routing, stream);
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
  return choose(added, scores, routing, arrived_.as<int>(), stream);
}

Status Moe::run_scores(const RouterConfig& config, const Norm& norm, Router scores,
                       cudaStream_t stream) const {
  if (config.kernel == RouterKernel::kScore) {
    // Only in time_moe(): in a step QKV has added it. score() does not.
    if (norm.deferred.expert_out != nullptr) RETURN_IF_ERROR(cuda::norm(norm, stream));
    return score(norm, scores, stream);
  }
  Norm normed = norm;
  normed.out_f32 = normed_f32_.as<float>();
  RETURN_IF_ERROR(cuda::norm(normed, stream));
  return router(scores, stream);
}

Result<DeferredResidual> Moe::run_from_logits(const LoadedModel& model, int index, const Norm& norm,
                                              const MoeKernelConfig& kernel_config, const float* logits,
                                              cudaStream_t stream) {
  if (norm.deferred.expert_out != nullptr) RETURN_IF_ERROR(cuda::norm(norm, stream));
  return route_and_run(model, index, norm, kernel_config,
                       routing_of(model, norm.rows, kernel_config.tile, logits), stream);
}

Result<DeferredResidual> Moe::route_and_run(const LoadedModel& model, int index, const Norm& norm,
                                            const MoeKernelConfig& kernel_config, const Route& routing,
                                            cudaStream_t stream) {
  const bool routes_itself = kernel_config.kernel == MoeKernel::kDecode ||
                             (kernel_config.kernel == MoeKernel::kSplitK && sm90::split_k_routes(routing));
  if (!routes_itself) RETURN_IF_ERROR(route(routing, stream));
  return run_experts(model, index, norm, kernel_config, routing, stream);
}

Result<DeferredResidual> Moe::run_experts(const LoadedModel& model, int index, const Norm& norm,
                                          const MoeKernelConfig& kernel_config, const Route& routing,
                                          cudaStream_t stream) {
  if (kernel_config.kernel == MoeKernel::kDecode) {
    RETURN_IF_ERROR(run_decode(model, index, norm, routing.logits, stream));
    return DeferredResidual();
  }
  RETURN_IF_ERROR(run_products(model, model.layers[index], norm, kernel_config, routing, stream));
  return DeferredResidual{.expert_out = out_.as<float>(),
                          .weights = routing.weights,
                          .permuted_rows = routing.permuted_rows,
                          .top_k = routing.top_k};
}

Status Moe::run_products(const LoadedModel& model, const Layer& layer, const Norm& norm,
                         const MoeKernelConfig& kernel_config, const Route& routing, cudaStream_t stream) {
  switch (kernel_config.kernel) {
    case MoeKernel::kSplitK:
      return run_split_k(model, layer, norm, routing, stream);
    case MoeKernel::kWgmma:
      return run_wgmma(model, layer, norm, kernel_config.tile, stream);
    case MoeKernel::kGemm:
      return run_gemm(model, layer, norm, kernel_config.tile, stream);
    case MoeKernel::kW4A8:
    case MoeKernel::kW4A8Prefill:
      return run_w4a8(model, layer, norm, kernel_config, stream);
    case MoeKernel::kDecode:
      break;  // adds to the residual by itself
  }
  return no_kernel("moe", layer.gate_up, norm.rows);
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

Route Moe::routing_of(const LoadedModel& model, int rows, int tile, const float* logits) const {
  return {.logits = logits,
          .rows = rows,
          .experts = model.config.experts,
          .top_k = model.config.experts_per_token,
          .tile = tile,
          .even = model.slabs,
          .ids = expert_ids_.as<int32_t>(),
          .weights = expert_weights_.as<float>(),
          .permuted_rows = permuted_rows_.as<int32_t>(),
          .source_rows = source_rows_.as<int32_t>(),
          .work_tiles = work_tiles_.as<WorkTile>(),
          .work_tile_count = work_tile_count_.as<int>()};
}

// The first product's activations: the permuted rows of what norm() wrote.
Activations Moe::permuted_activations(const LoadedModel& model, const Norm& norm, int tile) const {
  const ModelConfig& config = model.config;
  return {.x = norm.out,
          .rows = source_rows_.as<int32_t>(),
          .factor = 1.0f / norm.factor,
          .tokens = max_work_tiles(norm.rows, config.experts, config.experts_per_token, tile),
          .work_tiles = work_tiles_.as<WorkTile>(),
          .work_tile_count = work_tile_count_.as<int>(),
          .tile = tile};
}

// Where the second product goes; the next norm combines it.
Store Moe::expert_out(const LoadedModel& model, const Layer& layer) const {
  return {.out = out_.as<float>(),
          .stride = model.config.hidden,
          .bias = layer.down_bias.as<float>(),
          .rows = model.config.hidden};
}

Status Moe::run_gemm(const LoadedModel& model, const Layer& layer, const Norm& norm, int tile,
                     cudaStream_t stream) {
  const ModelConfig& config = model.config;
  Activations x = permuted_activations(model, norm, tile);
  RETURN_IF_ERROR(gemm(layer.gate_up, x,
                       SwiGlu{.out = hidden_.as<void>(),
                              .bf16 = takes_bf16(layer.down.kind),
                              .intermediate = config.intermediate,
                              .gate_bias = layer.gate_bias.as<float>(),
                              .up_bias = layer.up_bias.as<float>(),
                              .alpha = static_cast<float>(config.swiglu_alpha),
                              .limit = static_cast<float>(config.swiglu_limit)},
                       stream));
  x.x = hidden_.as<void>(), x.rows = nullptr, x.factor = 1.0f;
  return gemm(layer.down, x, expert_out(model, layer), stream);
}

Status Moe::run_split_k(const LoadedModel& model, const Layer& layer, const Norm& norm, const Route& routing,
                        cudaStream_t stream) {
  const sm90::SplitKRoute route{routing, sm90::split_k_routes(routing) ? arrived_.as<int>() : nullptr};
  Activations x = permuted_activations(model, norm, routing.tile);
  RETURN_IF_ERROR(sm90::split_k_up(layer.fc1_slabs.as<uint8_t>(), model.slab_layout, x, route,
                                   hidden_.as<__half>(), stream));
  x.x = hidden_.as<void>(), x.rows = nullptr, x.factor = 1.0f / sm90::kHScale;
  return sm90::split_k_down(layer.fc2_slabs.as<uint8_t>(), model.slab_layout, x, route,
                            expert_out(model, layer), stream);
}

Status Moe::run_wgmma(const LoadedModel& model, const Layer& layer, const Norm& norm, int tile,
                      cudaStream_t stream) {
  const ModelConfig& config = model.config;
  sm90::ActivationTiles x{
      .data = tiles_.as<void>(),
      .cols = config.hidden,
      .work_tiles = work_tiles_.as<WorkTile>(),
      .work_tile_count = work_tile_count_.as<int>(),
      .most_work_tiles = max_work_tiles(norm.rows, config.experts, config.experts_per_token, tile),
      .tile = tile,
      .layout = model.slab_layout};
  RETURN_IF_ERROR(sm90::arrange(norm.out, source_rows_.as<int32_t>(), x, stream));
  RETURN_IF_ERROR(sm90::wgmma_experts(layer.fc1_slabs.as<uint8_t>(), x, 1.0f / norm.factor,
                                      sm90::WgmmaSwiGlu{.out = hidden_.as<uint8_t>(),
                                                        .gate_bias = layer.gate_bias.as<float>(),
                                                        .up_bias = layer.up_bias.as<float>()},
                                      stream));
  x.data = hidden_.as<void>();
  return sm90::wgmma_experts(layer.fc2_slabs.as<uint8_t>(), x, 1.0f / sm90::kHScale, expert_out(model, layer),
                             stream);
}

Status Moe::run_w4a8(const LoadedModel& model, const Layer& layer, const Norm& norm,
                     const MoeKernelConfig& kernel_config, cudaStream_t stream) {
  const ModelConfig& config = model.config;
  const sm120::Tokens x{.data = tiles_.as<uint8_t>(),
                        .cols = config.hidden,
                        .work_tiles = work_tiles_.as<WorkTile>(),
                        .work_tile_count = work_tile_count_.as<int>(),
                        .most_work_tiles = max_work_tiles(norm.rows, config.experts, config.experts_per_token,
                                                          kernel_config.tile),
                        .tile = kernel_config.tile};
  sm120::Tokens h = x;
  h.data = hidden_.as<uint8_t>(), h.cols = config.intermediate;
  RETURN_IF_ERROR(
      sm120::expand(static_cast<const __nv_bfloat16*>(norm.out), source_rows_.as<int32_t>(), x, stream));
  RETURN_IF_ERROR(sm120::gemm(sm120::weights_of(layer.gate_up), x, tile_of(kernel_config),
                              sm120::SwiGluMx{.out = h.data,
                                              .intermediate = config.intermediate,
                                              .gate_bias = layer.gate_bias.as<float>(),
                                              .up_bias = layer.up_bias.as<float>(),
                                              .alpha = static_cast<float>(config.swiglu_alpha),
                                              .limit = static_cast<float>(config.swiglu_limit)},
                              stream));
  return sm120::gemm(sm120::weights_of(layer.down), h, tile_of(kernel_config), expert_out(model, layer),
                     stream);
}

// Adds to the residual by itself. Every layer has its own hidden buffer, which the next layer's launch
// clears.
Status Moe::run_decode(const LoadedModel& model, int index, const Norm& norm, const float* logits,
                       cudaStream_t stream) {
  const int layers = model.config.layers;
  const Layer& layer = model.layers[index];
  const Layer& before = model.layers[(index + layers - 1) % layers];
  const size_t clear = layer.slab_hidden.bytes();
  if (layers == 1)
    RETURN_IF_ERROR(check(cudaMemsetAsync(layer.slab_hidden.as<void>(), 0xFF, clear, stream), "moe"));
  return sm90::moe_decode({.fc1 = layer.fc1_slabs.as<uint8_t>(),
                           .fc2 = layer.fc2_slabs.as<uint8_t>(),
                           .x = static_cast<const __half*>(norm.out),
                           .x_scale = model.slab_scales.as<float>() + index * kSlabRows,
                           .logits = logits,
                           .experts = model.config.experts,
                           .residual = norm.x,
                           .out = norm.x,
                           .h = layer.slab_hidden.as<__half>(),
                           .h_clear = before.slab_hidden.as<__half>(),
                           .clear_vectors = layers == 1 ? 0 : static_cast<int>(clear / 16),
                           .tokens = norm.rows,
                           .layout = model.slab_layout},
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
