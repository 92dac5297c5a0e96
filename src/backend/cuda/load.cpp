#include <algorithm>
#include <cmath>

#include "backend/cuda/model.h"
#include "backend/cuda/sm90a/moe_decode.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

// Normed values are at most sqrt(hidden) * max |weight|: the power of two that brings that below 2^15 uses
// F16's whole range, whatever the checkpoint's norm weights are.
float f16_factor(int hidden, float largest_weight) {
  const double bound = std::sqrt(static_cast<double>(hidden)) * std::max(largest_weight, 1e-30f);
  return static_cast<float>(std::exp2(std::floor(std::log2(32768.0 / bound))));
}

constexpr size_t kSlabHiddenBytes = sizeof(__half) * kSlabRows * sm90a::kTopK * sm90a::kHidden;

// Loads one model.
class Loader {
 public:
  Loader(Model& model, const BackendOptions& options, cudaStream_t stream)
      : model_(model), config_(model.config), options_(options), stream_(stream) {}
  Status run(const ModelWeights& weights, const LoadProgress& progress);

 private:
  bool wants_slabs(const ModelWeights& weights) const;
  Status load_layer(Uploader& up, int index, const LayerWeights& w);
  Status load_experts(Uploader& up, int index, const LayerWeights& w);

  Model& model_;
  const ModelConfig& config_;
  const BackendOptions& options_;
  cudaStream_t stream_;
};

Status Loader::load_layer(Uploader& up, int index, const LayerWeights& w) {
  Layer& layer = model_.layers[index];
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  float attn_top = 0, mlp_top = 0;
  ASSIGN_OR_RETURN(layer.attn_norm, up.vector({w.attn_norm}, name("attention norm"), &attn_top));
  ASSIGN_OR_RETURN(layer.mlp_norm, up.vector({w.mlp_norm}, name("mlp norm"), &mlp_top));
  layer.attn_factor = f16_factor(config_.hidden, attn_top);
  layer.mlp_factor = f16_factor(config_.hidden, mlp_top);
  ASSIGN_OR_RETURN(layer.qkv_bias, up.vector({w.q_bias, w.k_bias, w.v_bias}, name("qkv bias")));
  ASSIGN_OR_RETURN(layer.o_bias, up.vector({w.o_bias}, name("o bias")));
  ASSIGN_OR_RETURN(layer.sinks, up.vector({w.sinks}, name("sinks")));
  ASSIGN_OR_RETURN(layer.router, up.vector({w.router}, name("router")));
  ASSIGN_OR_RETURN(layer.router_bias, up.vector({w.router_bias}, name("router bias")));
  ASSIGN_OR_RETURN(layer.gate_bias, up.vector({w.gate_bias}, name("gate bias")));
  ASSIGN_OR_RETURN(layer.up_bias, up.vector({w.up_bias}, name("up bias")));
  ASSIGN_OR_RETURN(layer.down_bias, up.vector({w.down_bias}, name("down bias")));
  ASSIGN_OR_RETURN(layer.qkv, up.matrix({w.q, w.k, w.v}, kind_of(w.q.format, options_.dense), Rows::kHeads,
                                        config_.head_dim, name("qkv")));
  ASSIGN_OR_RETURN(layer.o,
                   up.matrix({w.o}, kind_of(w.o.format, options_.dense), Rows::kPlain, 0, name("o")));
  return load_experts(up, index, w);
}

Status Loader::load_experts(Uploader& up, int index, const LayerWeights& w) {
  Layer& layer = model_.layers[index];
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  Slabs fc1{.expert_bytes = sm90a::kFc1Bytes,
            .bias = {layer.gate_bias.as<float>(), layer.up_bias.as<float>()}};
  Slabs fc2{.expert_bytes = sm90a::kFc2Bytes, .down = true, .bias = {layer.down_bias.as<float>()}};
  if (model_.slabs) {
    const size_t experts = config_.experts;
    ASSIGN_OR_RETURN(layer.fc1_slabs,
                     DeviceBuffer::allocate(experts * sm90a::kFc1Bytes, name("gate_up slabs")));
    ASSIGN_OR_RETURN(layer.fc2_slabs, DeviceBuffer::allocate(experts * sm90a::kFc2Bytes, name("down slabs")));
    ASSIGN_OR_RETURN(layer.slab_hidden, DeviceBuffer::allocate(kSlabHiddenBytes, name("activations")));
    RETURN_IF_ERROR(check(cudaMemset(layer.slab_hidden.as<void>(), 0xFF, kSlabHiddenBytes), "activations"));
    const std::vector<float> scales(kSlabRows, 1.0f / layer.mlp_factor);
    RETURN_IF_ERROR(check(cudaMemcpy(model_.slab_scales.as<float>() + index * kSlabRows, scales.data(),
                                     kSlabRows * sizeof(float), cudaMemcpyHostToDevice),
                          "activations"));
    fc1.data = layer.fc1_slabs.as<uint8_t>(), fc2.data = layer.fc2_slabs.as<uint8_t>();
  }
  const Kind experts = kind_of(w.gate.first.format, DenseFormat::kAsLoaded);
  ASSIGN_OR_RETURN(layer.gate_up, up.experts({w.gate, w.up}, experts, Rows::kPairs, name("gate_up experts"),
                                             model_.slabs ? &fc1 : nullptr));
  ASSIGN_OR_RETURN(layer.down, up.experts({w.down}, kind_of(w.down.first.format, DenseFormat::kAsLoaded),
                                          Rows::kPlain, name("down experts"), model_.slabs ? &fc2 : nullptr));
  return {};
}

// The decode kernel reads the experts in an order of its own, and the kernels for more tokens in theirs: both
// are kept where the memory allows it, which for gpt-oss-120b takes 122 GB.
bool Loader::wants_slabs(const ModelWeights& weights) const {
  const auto mxfp4 = [](const ExpertsView& v) {
    return v.first.format == Format::kMxfp4 || v.first.format == Format::kMxfp4Gguf;
  };
  const bool all = std::ranges::all_of(
      weights.layers, [&](const LayerWeights& w) { return mxfp4(w.gate) && mxfp4(w.up) && mxfp4(w.down); });
  if (options_.batch_invariant || !all) return false;
  if (!sm90a::moe_decode_fits(config_.hidden, config_.intermediate, config_.experts_per_token,
                              config_.experts) ||
      config_.swiglu_alpha != 1.702 || config_.swiglu_limit != 7.0 ||
      !sm90a::prepare_moe_decode(options_.device).ok())
    return false;
  size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) return false;
  constexpr double kRest = 12e9;  // dense weights, activations and some KV
  return 2.0 * config_.layers * config_.experts * (sm90a::kFc1Bytes + sm90a::kFc2Bytes) + kRest <
         static_cast<double>(available);
}

Status unsupported(const ModelConfig& c) {
  if (c.head_dim != 32 && c.head_dim != 64 && c.head_dim != 128)
    return error(StatusCode::kUnsupported, "cuda: head_dim {} is not 32, 64 or 128; use --device cpu",
                 c.head_dim);
  if (c.heads / c.kv_heads > 16)
    return error(StatusCode::kUnsupported,
                 "cuda: {} query heads share a KV head, at most 16 may; use --device cpu",
                 c.heads / c.kv_heads);
  if (c.experts > 1024 || c.experts_per_token > 16)
    return error(StatusCode::kUnsupported, "cuda: {} of {} experts, at most 16 of 1024; use --device cpu",
                 c.experts_per_token, c.experts);
  return {};
}

Status Loader::run(const ModelWeights& weights, const LoadProgress& progress) {
  model_.rope = make_rope_table(config_.rope, config_.head_dim);
  model_.layers.resize(config_.layers);
  model_.slabs = wants_slabs(weights);
  ASSIGN_OR_RETURN(model_.slab_scales,
                   DeviceBuffer::allocate(config_.layers * kSlabRows * sizeof(float), "activations"));
  ASSIGN_OR_RETURN(Uploader up, Uploader::create(stream_));
  const auto done = [&](int layer, int count) {
    if (weights.release) weights.release(layer);
    if (progress) progress(count, config_.layers + 1);
  };
  ASSIGN_OR_RETURN(model_.embed, up.table(weights.embed, "embedding"));
  ASSIGN_OR_RETURN(model_.head, up.matrix({weights.head}, kind_of(weights.head.format, options_.dense),
                                          Rows::kPlain, 0, "lm_head"));
  float top = 0;
  ASSIGN_OR_RETURN(model_.final_norm, up.vector({weights.final_norm}, "final norm", &top));
  model_.final_factor = f16_factor(config_.hidden, top);
  done(-1, 1);
  for (int i = 0; i < config_.layers; ++i) {
    RETURN_IF_ERROR(load_layer(up, i, weights.layers[i]));
    done(i, i + 2);
  }
  const std::vector<double>& frequency = model_.rope.inverse_frequency;
  ASSIGN_OR_RETURN(model_.inverse_frequency,
                   DeviceBuffer::allocate(frequency.size() * sizeof(double), "RoPE"));
  return check(cudaMemcpy(model_.inverse_frequency.as<double>(), frequency.data(),
                          model_.inverse_frequency.bytes(), cudaMemcpyHostToDevice),
               "RoPE");
}

}  // namespace

Result<Model> load_model(const ModelConfig& config, const ModelWeights& weights,
                         const BackendOptions& options, const LoadProgress& progress, cudaStream_t stream) {
  RETURN_IF_ERROR(validate(weights, config));
  RETURN_IF_ERROR(unsupported(config));
  Model model;
  model.config = config;
  RETURN_IF_ERROR(Loader(model, options, stream).run(weights, progress));
  return model;
}

}  // namespace moesaic::cuda
