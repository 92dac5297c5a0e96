#include "backend/cuda/moe.h"

#include "backend/cuda/sm90a/gemm_wide.h"
#include "backend/cuda/sm90a/moe_decode.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

MoeShape shape_of(const Model& model, int rows) {
  const ModelConfig& c = model.config;
  return {.tokens = rows,
          .top_k = c.experts_per_token,
          .experts = c.experts,
          .hidden = c.hidden,
          .intermediate = c.intermediate,
          .expert_bytes = (model.layers[0].gate_up.bytes() + model.layers[0].down.bytes()) / c.experts};
}

}  // namespace

std::vector<Wanted> Moe::buffers(const ModelConfig& config, int max_rows) {
  const size_t rows = max_rows, pairs = rows * config.experts_per_token;
  const size_t tiles = sm90a::tile_tokens(pairs, config.experts);
  return {
      {&normed_f32_, rows * config.hidden * 4},
      {&router_logits_, rows * config.experts * 4},
      {&expert_ids_, pairs * 4},
      {&expert_weights_, pairs * 4},
      {&slots_, pairs * 4},
      {&slot_rows_, pairs * 4},
      {&jobs_, (pairs + config.experts) * sizeof(Job)},
      {&job_count_, sizeof(int)},
      {&tiles_, tiles * config.hidden * 2},
      {&hidden_, tiles * config.intermediate * 2},
      {&out_, pairs * config.hidden * 4},
      {&arrived_, sizeof(int)},
  };
}

void Moe::settle(Norm& next) {
  if (!pending_) return;
  pending_ = false;
  next.expert_out = out_.as<float>();
  next.expert_weights = expert_weights_.as<float>();
  next.slots = slots_.as<int32_t>();
}

void Moe::prefer(std::vector<TunedStep> measured) {
  measured_ = std::move(measured);
  chosen_.clear();
}

const MoeWay& Moe::way_for(const Model& model, int rows) {
  const auto [at, fresh] = chosen_.try_emplace(rows);
  if (!fresh) return *at->second;
  const std::vector<MoeChoice> ranked = rank_ways(shape_of(model, rows), hopper_ways(model.slabs));
  at->second = ranked.front().way;
  const TunedStep* step = nearest_step(measured_, rows);
  for (const MoeChoice& c : ranked) {
    if (step != nullptr && c.way->name == step->way) at->second = c.way;
  }
  return *at->second;
}

Status Moe::run(const Model& model, int index, Norm norm, const RouterTrace& trace, cudaStream_t stream) {
  const Layer& layer = model.layers[index];
  const MoeWay& way = way_for(model, norm.rows);
  const bool decode = way.kernel == MoeKernel::kDecode;
  RETURN_IF_ERROR(choose_experts(model, layer, norm, way.tile, decode, stream));
  if (trace) RETURN_IF_ERROR(trace_router(model.config, index, norm.rows, trace, stream));
  if (decode) return run_slabs(model, index, norm, stream);
  return way.kernel == MoeKernel::kWide ? run_wide(model, layer, norm, way.tile, stream)
                                        : run_jobs(model, layer, norm, way.tile, stream);
}

Status Moe::choose_experts(const Model& model, const Layer& layer, Norm normed, int tile, bool in_slabs,
                           cudaStream_t stream) {
  const int experts = model.config.experts;
  const Router logits{.x = normed_f32_.as<float>(),
                      .weight = layer.router.as<float>(),
                      .bias = layer.router_bias.as<float>(),
                      .logits = router_logits_.as<float>(),
                      .rows = normed.rows,
                      .hidden = model.config.hidden,
                      .experts = experts};
  const Route routing{.logits = router_logits_.as<float>(),
                      .rows = normed.rows,
                      .experts = experts,
                      .top_k = model.config.experts_per_token,
                      .tile = tile,
                      .even = model.slabs,
                      .ids = expert_ids_.as<int32_t>(),
                      .weights = expert_weights_.as<float>(),
                      .slots = slots_.as<int32_t>(),
                      .slot_rows = slot_rows_.as<int32_t>(),
                      .jobs = jobs_.as<Job>(),
                      .job_count = job_count_.as<int>()};
  if (in_slabs) return score(normed, logits, stream);
  if (can_choose(logits, routing)) return choose(normed, logits, routing, arrived_.as<int>(), stream);
  normed.out_f32 = normed_f32_.as<float>();
  RETURN_IF_ERROR(norm(normed, stream));
  RETURN_IF_ERROR(router(logits, stream));
  return route(routing, stream);
}

Status Moe::run_jobs(const Model& model, const Layer& layer, const Norm& norm, int tile,
                     cudaStream_t stream) {
  const ModelConfig& config = model.config;
  Activations act{.x = norm.out,
                  .rows = slot_rows_.as<int32_t>(),
                  .factor = 1.0f / norm.factor,
                  .tokens = max_jobs(norm.rows, config.experts, config.experts_per_token, tile),
                  .jobs = jobs_.as<Job>(),
                  .job_count = job_count_.as<int>(),
                  .tile = tile};
  RETURN_IF_ERROR(gemm(layer.gate_up, act,
                       SwiGlu{.out = hidden_.as<void>(),
                              .bf16 = takes_bf16(layer.down.kind),
                              .intermediate = config.intermediate,
                              .gate_bias = layer.gate_bias.as<float>(),
                              .up_bias = layer.up_bias.as<float>(),
                              .alpha = static_cast<float>(config.swiglu_alpha),
                              .limit = static_cast<float>(config.swiglu_limit)},
                       stream));
  act.x = hidden_.as<void>(), act.rows = nullptr, act.factor = 1.0f;
  pending_ = true;
  return gemm(layer.down, act,
              Store{.out = out_.as<float>(),
                    .stride = config.hidden,
                    .bias = layer.down_bias.as<float>(),
                    .rows = config.hidden},
              stream);
}

Status Moe::run_wide(const Model& model, const Layer& layer, const Norm& norm, int tile,
                     cudaStream_t stream) {
  const ModelConfig& config = model.config;
  sm90a::Tiles x{.data = tiles_.as<void>(),
                 .cols = config.hidden,
                 .jobs = jobs_.as<Job>(),
                 .job_count = job_count_.as<int>(),
                 .most_jobs = max_jobs(norm.rows, config.experts, config.experts_per_token, tile),
                 .tile = tile};
  RETURN_IF_ERROR(sm90a::arrange(norm.out, slot_rows_.as<int32_t>(), x, stream));
  RETURN_IF_ERROR(sm90a::wide_experts(layer.fc1_slabs.as<uint8_t>(), x, 1.0f / norm.factor,
                                      sm90a::WideSwiGlu{.out = hidden_.as<uint8_t>(),
                                                        .gate_bias = layer.gate_bias.as<float>(),
                                                        .up_bias = layer.up_bias.as<float>()},
                                      stream));
  x.data = hidden_.as<void>();
  pending_ = true;
  return sm90a::wide_experts(layer.fc2_slabs.as<uint8_t>(), x, 1.0f / sm90a::kHScale,
                             Store{.out = out_.as<float>(),
                                   .stride = config.hidden,
                                   .bias = layer.down_bias.as<float>(),
                                   .rows = config.hidden},
                             stream);
}

// Adds to the residual by itself. Every layer has its own hidden buffer, which the next layer's launch
// clears.
Status Moe::run_slabs(const Model& model, int index, const Norm& norm, cudaStream_t stream) {
  const int layers = model.config.layers;
  const Layer& layer = model.layers[index];
  const Layer& before = model.layers[(index + layers - 1) % layers];
  const size_t clear = layer.slab_hidden.bytes();
  if (layers == 1)
    RETURN_IF_ERROR(check(cudaMemsetAsync(layer.slab_hidden.as<void>(), 0xFF, clear, stream), "moe"));
  return sm90a::moe_decode({.fc1 = layer.fc1_slabs.as<uint8_t>(),
                            .fc2 = layer.fc2_slabs.as<uint8_t>(),
                            .x = static_cast<const __half*>(norm.out),
                            .x_scale = model.slab_scales.as<float>() + index * kSlabRows,
                            .logits = router_logits_.as<float>(),
                            .experts = model.config.experts,
                            .residual = norm.x,
                            .out = norm.x,
                            .h = layer.slab_hidden.as<__half>(),
                            .h_clear = before.slab_hidden.as<__half>(),
                            .clear_vectors = layers == 1 ? 0 : static_cast<int>(clear / 16),
                            .tokens = norm.rows},
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
