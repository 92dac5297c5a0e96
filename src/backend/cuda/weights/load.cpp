#include "backend/cuda/weights/load.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/ops/expert_stream.h"
#include "backend/cuda/ops/expert_weights.h"
#include "backend/cuda/ops/rank_exchange.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/weights/upload.h"
#include "backend/mxfp4_panels.h"
#include "base/error.h"
#include "core/merge_adapter.h"
#include "tuning/moe_kernels.h"

namespace moesaic::cuda {
namespace {

// Loads one model, or counts what it takes: as the uploader was made.
class ModelLoader {
 public:
  ModelLoader(LoadedModel& model, const BackendOptions& options, Uploader& up, HostExperts* host = nullptr)
      : model_(model), config_(model.config), options_(options), up_(up), host_(host) {}
  Status run(const ModelWeights& weights, const LoadProgress& progress);

 private:
  Kind dense_kind(const MatrixView& m) const { return kind_of(m.format, options_.dense, model_.dense_mx); }
  Status load_adapted(int index, const ModelWeights& weights);
  Status load_layer(int index, const LayerWeights& w, const LayerAdapter& apart);
  Status load_experts(int index, const LayerWeights& w);
  Status load_host_experts(int index, const LayerWeights& w, const LayerAdapter& apart);
  Status load_expert_biases(int index, const LayerWeights& w);
  Status make_stream_room(const LayerWeights& w);
  Status make_arrivals(const LayerWeights& w);
  Status make_room(Layer& layer, LayerWeights w, int experts, const char* part);
  Status make_hot_room(Layer& layer, const LayerWeights& w);
  Status alloc_slabs(Layer& layer, int experts, const char* part, const std::string& name);
  Status alloc_slab_scratch(int index, const std::string& name);
  Kind expert_kind(const ExpertsView& e) const { return kind_of(e.first.format, std::nullopt, model_.w4a8); }

  LoadedModel& model_;
  const ModelConfig& config_;
  const BackendOptions& options_;
  Uploader& up_;
  HostExperts* host_;
  std::unique_ptr<ThreadPool> mergers_;  // for layers with adapters
};

// The kernels take a matrix and nothing beside it: adapters are merged into those that they reach. The host's
// experts have theirs apart.
Status ModelLoader::load_adapted(int index, const ModelWeights& weights) {
  LayerAdapter merges = adapter_of(weights, index), apart;
  if (model_.on_host(index))
    apart.gate_up = std::exchange(merges.gate_up, {}), apart.down = std::exchange(merges.down, {});
  if (up_.counts_only()) return load_layer(index, merged_formats(weights.layers[index], merges), apart);
  ASSIGN_OR_RETURN(const ReadableLayer stored, layer_of(weights, index));
  if (weights.adapters.empty()) return load_layer(index, stored.weights, apart);
  if (!mergers_) mergers_ = std::make_unique<ThreadPool>(0);
  ASSIGN_OR_RETURN(const MergedLayer merged, merge_adapter(stored.weights, merges, *mergers_));
  return load_layer(index, merged.weights, apart);
}

Status ModelLoader::load_layer(int index, const LayerWeights& w, const LayerAdapter& apart) {
  Layer& layer = model_.layers[index];
  const RankShare& share = options_.rank.share;
  layer.shape = cut(layer_shape(config_, index), share);
  layer.h_columns = share.rows(config_.intermediate), layer.out_rows = share.rows(config_.hidden);
  layer.fp8 = options_.kv == KvFormat::kFp8;
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  float attn_top = 0, mlp_top = 0;
  ASSIGN_OR_RETURN(layer.attn_norm, up_.vector({w.attn_norm}, name("attention norm"), &attn_top));
  ASSIGN_OR_RETURN(layer.mlp_norm, up_.vector({w.mlp_norm}, name("mlp norm"), &mlp_top));
  layer.attn_factor = f16_factor(config_.hidden, attn_top);
  layer.mlp_factor = f16_factor(config_.hidden, mlp_top);
  ASSIGN_OR_RETURN(layer.qkv_bias, up_.vector({w.q_bias, w.k_bias, w.v_bias}, name("qkv bias")));
  ASSIGN_OR_RETURN(layer.o_bias, up_.vector({w.o_bias}, name("o bias")));
  ASSIGN_OR_RETURN(layer.sinks, up_.vector({w.sinks}, name("sinks")));
  ASSIGN_OR_RETURN(layer.router, up_.vector({w.router}, name("router")));
  ASSIGN_OR_RETURN(layer.router_bias, up_.vector({w.router_bias}, name("router bias")));
  ASSIGN_OR_RETURN(layer.qkv, up_.matrix({w.q, w.k, w.v}, dense_kind(w.q), RowOrder::kHeads, config_.head_dim,
                                         kProjectionsPart, name("qkv")));
  layer.qkv.first_weight_tile =
      layer.shape.q_size() / kWeightTileRows;  // K and V, with which the attention has more to do
  ASSIGN_OR_RETURN(layer.o,
                   up_.matrix({w.o}, dense_kind(w.o), RowOrder::kPlain, 0, kProjectionsPart, name("o")));
  return model_.on_host(index) ? load_host_experts(index, w, apart) : load_experts(index, w);
}

Status ModelLoader::load_host_experts(int index, const LayerWeights& w, const LayerAdapter& apart) {
  if (model_.stream.count + model_.hot_experts > 0) RETURN_IF_ERROR(load_expert_biases(index, w));
  if (model_.hot_experts > 0)
    RETURN_IF_ERROR(make_hot_room(model_.hot[static_cast<size_t>(index - model_.host_from)], w));
  if (up_.counts_only()) return {};
  return host_->add(model_.layers[index].shape, w, apart, fmt::format("layer {}", index)).status();
}

Status ModelLoader::load_expert_biases(int index, const LayerWeights& w) {
  Layer& layer = model_.layers[index];
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  ASSIGN_OR_RETURN(layer.gate_bias, up_.vector({w.gate_bias}, name("gate bias")));
  ASSIGN_OR_RETURN(layer.up_bias, up_.vector({w.up_bias}, name("up bias")));
  ASSIGN_OR_RETURN(layer.down_bias, up_.vector({w.down_bias}, name("down bias")));
  return {};
}

Status ModelLoader::alloc_slabs(Layer& layer, int experts, const char* part, const std::string& name) {
  const auto count = static_cast<size_t>(experts);
  ASSIGN_OR_RETURN(layer.fc1_slabs, up_.buffer(count * model_.slab_layout.fc1_bytes(), 0, part, name));
  ASSIGN_OR_RETURN(layer.fc2_slabs, up_.buffer(count * model_.slab_layout.fc2_bytes(), 0, part, name));
  return {};
}

Status ModelLoader::alloc_slab_scratch(int index, const std::string& name) {
  Layer& layer = model_.layers[index];
  ASSIGN_OR_RETURN(layer.slab_hidden, up_.buffer(slab_scratch_bytes(kSlabRows), 0xFF, kExpertsPart, name));
  const std::vector<float> scales(kSlabRows, 1.0f / layer.mlp_factor);
  const size_t bytes = kSlabRows * sizeof(float);
  return up_.put(model_.slab_scales, index * bytes, scales.data(), bytes, name);
}

// Room for the first so many experts of a layer, as layers have it.
Status ModelLoader::make_room(Layer& layer, LayerWeights w, int experts, const char* part) {
  for (ExpertsView* e : {&w.gate, &w.up, &w.down}) e->count = experts;
  if (model_.slabs) RETURN_IF_ERROR(alloc_slabs(layer, experts, part, part));
  ASSIGN_OR_RETURN(layer.gate_up,
                   up_.room({w.gate, w.up}, expert_kind(w.gate), RowOrder::kPairs, part, part, model_.slabs));
  ASSIGN_OR_RETURN(layer.down,
                   up_.room({w.down}, expert_kind(w.down), RowOrder::kPlain, part, part, model_.slabs));
  return {};
}

Status ModelLoader::make_stream_room(const LayerWeights& w) {
  for (int i = 0; i < model_.stream.count; ++i)
    RETURN_IF_ERROR(make_room(model_.stream.layers[static_cast<size_t>(i)], w, config_.experts, kStreamPart));
  return make_arrivals(w);
}

// For pieces of packed panels, as the CPU's memory has them.
Status ModelLoader::make_arrivals(const LayerWeights& w) {
  const auto piece = [&](int64_t pairs, int64_t cols) {
    const auto values = static_cast<size_t>(pairs * kPair * kPanel * cols);
    return stream_piece(w.gate.count, values / 2, values / kBlock).bytes;
  };
  const auto panels = [](const ExpertsView& e) { return (e.first.rows + kPanel - 1) / kPanel; };
  StreamRoom& room = model_.stream;
  room.arrival_bytes = std::max(piece(panels(w.gate), w.gate.first.cols),
                                piece((panels(w.down) + kPair - 1) / kPair, w.down.first.cols));
  ASSIGN_OR_RETURN(room.arrivals, up_.buffer(kArrivals * room.arrival_bytes, 0, kStreamPart, kStreamPart));
  return {};
}

Status ModelLoader::make_hot_room(Layer& layer, const LayerWeights& w) {
  RETURN_IF_ERROR(make_room(layer, w, model_.hot_experts, kHotPart));
  const auto biases = [&](int64_t rows) {
    return up_.buffer(static_cast<size_t>(model_.hot_experts * rows) * sizeof(float), 0, kHotPart, kHotPart);
  };
  ASSIGN_OR_RETURN(layer.gate_bias, biases(w.gate.first.rows));
  ASSIGN_OR_RETURN(layer.up_bias, biases(w.up.first.rows));
  ASSIGN_OR_RETURN(layer.down_bias, biases(w.down.first.rows));
  return {};
}

Status ModelLoader::load_experts(int index, const LayerWeights& w) {
  Layer& layer = model_.layers[index];
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  RETURN_IF_ERROR(load_expert_biases(index, w));
  if (model_.slabs) {
    RETURN_IF_ERROR(alloc_slabs(layer, config_.experts, kExpertsPart, name("experts")));
    RETURN_IF_ERROR(alloc_slab_scratch(index, name("experts")));
  }
  const SlabParams fc1{.layout = model_.slab_layout,
                       .bias = {layer.gate_bias.as<float>(), layer.up_bias.as<float>()},
                       .out = layer.fc1_slabs.as<uint8_t>(),
                       .expert_bytes = model_.slab_layout.fc1_bytes()};
  const SlabParams fc2{.down = true,
                       .layout = model_.slab_layout,
                       .bias = {layer.down_bias.as<float>()},
                       .out = layer.fc2_slabs.as<uint8_t>(),
                       .expert_bytes = model_.slab_layout.fc2_bytes()};
  ASSIGN_OR_RETURN(layer.gate_up,
                   up_.experts({w.gate, w.up}, expert_kind(w.gate), RowOrder::kPairs, kExpertsPart,
                               name("gate_up experts"), model_.slabs ? &fc1 : nullptr));
  ASSIGN_OR_RETURN(layer.down, up_.experts({w.down}, expert_kind(w.down), RowOrder::kPlain, kExpertsPart,
                                           name("down experts"), model_.slabs ? &fc2 : nullptr));
  return {};
}

bool adapts_experts(const ModelWeights& weights) {
  return std::ranges::any_of(weights.adapters, [](const LayerAdapter& adapter) {
    return !adapter.gate_up.empty() || !adapter.down.empty();
  });
}

// Adapters do not come to the GPU with a layer's experts.
Status check_host(const ModelWeights& weights, const BackendOptions& options, int host_layers) {
  const ExpertPlacement& asked = options.experts;
  if (host_layers == 0 || !adapts_experts(weights) || (asked.hot == 0 && asked.stream_rows <= 0)) return {};
  return error(StatusCode::kUnsupported,
               "--experts: where experts have LoRA adapters the CPU computes all that are in host memory; "
               "leave out ,{}",
               asked.hot > 0 ? "hot" : "stream:ROWS");
}

// A quantised matrix with an adapter would be quantised a second time.
Status check_adapters(const ModelWeights& weights, const BackendOptions& options) {
  if (weights.adapters.empty() || options.dense.value_or(Format::kBF16) == Format::kBF16) return {};
  return error(
      StatusCode::kUnsupported,
      "cuda: LoRA adapters are merged into BF16 matrices, which --dense would make {}; use --dense keep "
      "or bf16",
      format_name(*options.dense));
}

Status check_rank(const ModelConfig& c, const Paths& paths, const RankPlace& rank) {
  if (rank.alone()) return {};
  if (paths.w4a8 || paths.dense_mx)
    return error(StatusCode::kUnsupported,
                 "cuda: --moe-path w4a8 and w4a8x2 have one rank; use --moe-path auto, or --tp 1");
  if (c.layers < 2 || c.layers > kMostRankLayers)
    return error(StatusCode::kUnsupported, "cuda: a model of {} layers has one rank; use --tp 1", c.layers);
  return {};
}

Status unsupported(const ModelConfig& c) {
  if (c.head_dim != 32 && c.head_dim != 64 && c.head_dim != 128)
    return error(StatusCode::kUnsupported, "cuda: head_dim {} is not 32, 64 or 128; use --device cpu",
                 c.head_dim);
  if (c.heads / c.kv_heads > kMostGroup)
    return error(StatusCode::kUnsupported,
                 "cuda: {} query heads share a KV head, at most {} may; use --device cpu",
                 c.heads / c.kv_heads, kMostGroup);
  if (c.hidden > kMostHidden)
    return error(StatusCode::kUnsupported, "cuda: hidden size {}, at most {}; use --device cpu", c.hidden,
                 kMostHidden);
  if (c.experts > kMostRoutedExperts || c.experts_per_token > kMostRoutedTopK)
    return error(StatusCode::kUnsupported, "cuda: {} of {} experts, at most {} of {}; use --device cpu",
                 c.experts_per_token, c.experts, kMostRoutedTopK, kMostRoutedExperts);
  return {};
}

Status ModelLoader::run(const ModelWeights& weights, const LoadProgress& progress) {
  model_.head_rows = options_.rank.share.rows(config_.vocab);
  model_.rope = make_rope_table(config_.rope, config_.head_dim);
  model_.layers.resize(config_.layers);
  ASSIGN_OR_RETURN(model_.slab_scales,
                   up_.buffer(config_.layers * kSlabRows * sizeof(float), 0, kVectorsPart, "activations"));
  const bool evicts = !up_.counts_only() && shares_host_memory();
  const auto done = [&](int layer, int count) -> Status {
    if (up_.counts_only()) return {};
    if (weights.release) weights.release(layer);
    if (evicts && weights.evict) weights.evict(layer);
    return report(progress, count, config_.layers + 1);
  };
  ASSIGN_OR_RETURN(model_.embed, up_.table(weights.embed, kEmbeddingPart, "embedding"));
  ASSIGN_OR_RETURN(model_.head, up_.matrix({weights.head}, dense_kind(weights.head), RowOrder::kPlain, 0,
                                           kHeadPart, "lm_head"));
  float top = 0;
  ASSIGN_OR_RETURN(model_.final_norm, up_.vector({weights.final_norm}, "final norm", &top));
  model_.final_factor = f16_factor(config_.hidden, top);
  RETURN_IF_ERROR(done(-1, 1));
  if (model_.stream.count + model_.hot_experts > 0)
    RETURN_IF_ERROR(make_stream_room(weights.layers[model_.host_from]));
  for (int i = 0; i < config_.layers; ++i) {
    RETURN_IF_ERROR(load_adapted(i, weights));
    RETURN_IF_ERROR(done(i, i + 2));
  }
  const std::vector<double>& frequency = model_.rope.inverse_frequency;
  const size_t bytes = frequency.size() * sizeof(double);
  ASSIGN_OR_RETURN(model_.inverse_frequency, up_.buffer(bytes, 0, kVectorsPart, "RoPE"));
  RETURN_IF_ERROR(up_.put(model_.inverse_frequency, 0, frequency.data(), bytes, "RoPE"));
  return up_.finish();
}

}  // namespace

Paths paths_of(const ModelConfig& c, const ModelWeights& stored, const BackendOptions& options) {
  const ModelWeights weights = merged_formats(stored);
  const Result<Features> features = features_of_device(options.device);
  const Target target = target_of(features.ok() ? features.value() : Features(), options);
  const ExpertsShape shape{.mxfp4 = all_mxfp4(weights),
                           .sizes = {.top_k = c.experts_per_token,
                                     .experts = c.experts,
                                     .hidden = c.hidden,
                                     .intermediate = c.intermediate},
                           .swiglu_alpha = c.swiglu_alpha,
                           .swiglu_limit = c.swiglu_limit};
  const auto experts = select(shape, target);
  const auto is = [&](ExpertsLayout layout) { return experts.ok() && experts.value()->layout == layout; };
  const slabs::SlabLayout layout = slab_layout_of(options.device, options.max_sms, options.rank.share);
  return {.slabs = is(ExpertsLayout::kSlabs) && prepare_slabs(layout),
          .wgmma = target.features.have(kWgmma),
          .fp8 = experts.ok() && experts.value()->path == MoePath::kFp8,
          .w4a8 = is(ExpertsLayout::kQuads),
          .parts = mxfp8_parts(options.moe_path),
          .dense_mx = is_w4a8(options.moe_path),
          .slab_layout = layout};
}

bool may_stream(const ModelWeights& weights, const BackendOptions& options, int host_layers) {
  return host_layers > 0 && options.experts.stream_rows != ExpertPlacement::kNever && all_mxfp4(weights) &&
         !adapts_experts(weights);
}

int hot_experts(const ModelConfig& config, const ModelWeights& weights, const BackendOptions& options,
                int host_layers) {
  return host_layers > 0 && all_mxfp4(weights) && !adapts_experts(weights)
             ? std::min(options.experts.hot, config.experts)
             : 0;
}

namespace {

LoadedModel model_of(const ModelConfig& config, const ModelWeights& weights, const BackendOptions& options,
                     const Paths& paths, int host_layers) {
  LoadedModel model;
  model.config = config;
  model.host_from = config.layers - host_layers;
  if (may_stream(weights, options, host_layers))
    model.stream.count = std::min<int>(host_layers, std::size(model.stream.layers));
  model.hot_experts = hot_experts(config, weights, options, host_layers);
  if (model.hot_experts > 0) model.hot.resize(static_cast<size_t>(host_layers));
  static_cast<Paths&>(model) = paths;
  return model;
}

}  // namespace

std::vector<MemoryPart> count_model(const ModelConfig& config, const ModelWeights& weights,
                                    const BackendOptions& options, const Paths& paths, int host_layers) {
  LoadedModel model = model_of(config, weights, options, paths, host_layers);
  Uploader counter;
  // load_model() refuses a model that cannot be counted.
  if (!ModelLoader(model, options, counter).run(cut(weights, config, options.rank.share), {}).ok()) return {};
  return counter.parts();
}

namespace {

Status check_fp8(const BackendOptions& options, const Paths& paths) {
  if (options.moe_path != MoePath::kFp8 || paths.fp8) return {};
  return error(
      StatusCode::kUnsupported,
      "cuda: --moe-path fp8 is for gpt-oss's experts in MXFP4 on Ada and Hopper (compute capability 8.9 and "
      "9.0), without --batch-invariant; leave it out");
}

}  // namespace

Result<LoadedModel> load_model(const ModelConfig& config, const ModelWeights& weights,
                               const BackendOptions& options, const LoadProgress& progress,
                               cudaStream_t stream, int host_layers, HostExperts* host) {
  RETURN_IF_ERROR(validate(weights, config));
  RETURN_IF_ERROR(unsupported(config));
  RETURN_IF_ERROR(check_adapters(weights, options));
  RETURN_IF_ERROR(check_host(weights, options, host_layers));
  const Paths paths = paths_of(config, weights, options);
  RETURN_IF_ERROR(check_rank(config, paths, options.rank));
  RETURN_IF_ERROR(check_fp8(options, paths));
  LoadedModel model = model_of(config, weights, options, paths, host_layers);
  RETURN_IF_ERROR(load_quad_kernels(model.w4a8, model.dense_mx));
  model.emulated = emulates_quads();
  Uploader up;
  RETURN_IF_ERROR(up.open(stream, weights.pools));
  RETURN_IF_ERROR(
      ModelLoader(model, options, up, host).run(cut(weights, config, options.rank.share), progress));
  return model;
}

}  // namespace moesaic::cuda
