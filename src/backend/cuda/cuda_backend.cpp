#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "backend/cuda/attention.h"
#include "backend/cuda/bandwidth.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/matrix.h"
#include "backend/cuda/repack.h"
#include "backend/cuda/route.h"
#include "backend/cuda/sm90a/moe_decode.h"
#include "backend/cuda/step.h"
#include "base/error.h"

namespace moesaic {
namespace cuda {
namespace {

enum Op { kEmbed, kQkv, kAttend, kProject, kMoe, kUnembed, kOps };
constexpr std::array<const char*, kOps> kOpNames = {"embed", "qkv", "attend", "project", "moe", "unembed"};

struct Layer {
  DeviceBuffer attn_norm, mlp_norm, qkv_bias, o_bias, sinks, router, router_bias;
  DeviceBuffer gate_bias, up_bias, down_bias;
  Matrix qkv, o, gate_up, down;
  float attn_factor = 1, mlp_factor = 1;  // of the normed activations in F16
  DeviceBuffer k, v;
  // The experts once more for sm90a::moe_decode, and what its thread blocks hand each other within a launch.
  DeviceBuffer fc1_slabs, fc2_slabs, slab_hidden;
};

// Normed values are at most sqrt(hidden) * max |weight|: the power of two that brings that below 2^15 uses
// F16's whole range, whatever the checkpoint's norm weights are.
float f16_factor(int hidden, float largest_weight) {
  const double bound = std::sqrt(static_cast<double>(hidden)) * std::max(largest_weight, 1e-30f);
  return static_cast<float>(std::exp2(std::floor(std::log2(32768.0 / bound))));
}

constexpr int kSlabRows = 8;
constexpr size_t kSlabHiddenBytes = sizeof(__half) * kSlabRows * sm90a::kTopK * sm90a::kHidden;

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options) : options_(options) {}
  ~CudaBackend() override;
  Status open();

  BackendCaps caps() const override;
  double read_bandwidth() override;
  double kv_token_bytes(const ModelConfig& config) const override { return 4.0 * config.kv_size(); }
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  Status begin_step(const Batch& batch) override;
  void embed() override;
  void qkv(int layer) override;
  void attend(int layer) override;
  void project(int layer) override;
  void moe(int layer) override;
  void unembed(std::span<float> logits) override;
  Status end_step() override;
  std::vector<OpProfile> profile() const override { return {profile_.begin(), profile_.end()}; }
  void reset_profile() override;
  void time_ops(bool on) override { timed_ = on; }

 private:
  Status load_layer(Uploader& up, int index, const LayerWeights& w);
  Status load_experts(Uploader& up, int index, const LayerWeights& w);
  bool wants_slabs(const ModelWeights& weights) const;
  bool decodes_in_slabs() const { return slabs_ && shape_.rows <= kSlabRows; }
  Status launch_slabs(int index);
  Status alloc_arena();
  Status begin_graph();
  Status end_graph();
  void run(Op op, double bytes, double flops, Status status);
  template <typename Body>
  void timed(Op op, double bytes, double flops, Body&& body);
  Norm norm_of(const DeviceBuffer& weight, float factor, bool bf16, int code, int rows);
  Status launch_moe(int index);
  Status trace_router(int index);
  const int32_t* input(int offset) const { return inputs_.as<int32_t>() + offset; }
  double expected_experts() const;

  BackendOptions options_;
  cudaStream_t stream_ = nullptr;
  std::string name_;
  ModelConfig config_;
  RopeTable rope_;
  std::vector<Layer> layers_;
  Table embed_;
  Matrix head_;
  DeviceBuffer final_norm_, inverse_frequency_;
  float final_factor_ = 1;
  bool slabs_ = false;
  DeviceBuffer slab_scales_;  // [layers, kSlabRows]: what undoes the layer's mlp_factor
  KvLayout kv_layout_;

  // The arena, for max_rows rows.
  DeviceBuffer inputs_, x_, normed_, normed_f32_, q_, attended_, rotation_, router_logits_, expert_ids_,
      expert_weights_;
  DeviceBuffer slots_, slot_rows_, jobs_, job_count_, hidden_, expert_out_, partial_, arrived_, fault_,
      logits_;
  PinnedBuffer pinned_inputs_, pinned_fault_, pinned_logits_;
  size_t input_capacity_ = 0;
  int logit_capacity_ = 0;  // rows of logits_ and pinned_logits_

  // One step.
  StepShape shape_;
  StepLayout at_;
  std::vector<int32_t> packed_;
  std::span<float> logits_out_;
  bool pending_experts_ = false;  // the residual lacks the last layer's experts
  Status fault_status_;
  bool replaying_ = false, capturing_ = false, timed_ = false;
  std::map<StepShape, cudaGraphExec_t> graphs_;
  double keys_ = 0, window_keys_ = 0, cached_ = 0, window_cached_ = 0;  // of the step, for the profile
  std::array<OpProfile, kOps> profile_;
};

CudaBackend::~CudaBackend() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status CudaBackend::open() {
  RETURN_IF_ERROR(check(cudaSetDevice(options_.device), "device"));
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, options_.device), "device"));
  RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
  name_ = fmt::format("cuda:{} ({}, sm_{}{})", options_.device, properties.name, properties.major,
                      properties.minor);
  reset_profile();
  return {};
}

BackendCaps CudaBackend::caps() const {
  return {.name = name_, .threads = 1, .prefill_rows = 2048, .half_activations = true};
}

double CudaBackend::read_bandwidth() {
  const Result<double> gb_s = measure_read_bandwidth(stream_);
  return gb_s.ok() ? gb_s.value() : 0;
}

void CudaBackend::reset_profile() {
  for (int op = 0; op < kOps; ++op) profile_[op] = {.op = kOpNames[op]};
}

// ---- loading ----

Status CudaBackend::load_layer(Uploader& up, int index, const LayerWeights& w) {
  Layer& layer = layers_[index];
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

Status CudaBackend::load_experts(Uploader& up, int index, const LayerWeights& w) {
  Layer& layer = layers_[index];
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  Slabs fc1{.expert_bytes = sm90a::kFc1Bytes,
            .bias = {layer.gate_bias.as<float>(), layer.up_bias.as<float>()}};
  Slabs fc2{.expert_bytes = sm90a::kFc2Bytes, .down = true, .bias = {layer.down_bias.as<float>()}};
  if (slabs_) {
    const size_t experts = config_.experts;
    ASSIGN_OR_RETURN(layer.fc1_slabs,
                     DeviceBuffer::allocate(experts * sm90a::kFc1Bytes, name("gate_up slabs")));
    ASSIGN_OR_RETURN(layer.fc2_slabs, DeviceBuffer::allocate(experts * sm90a::kFc2Bytes, name("down slabs")));
    ASSIGN_OR_RETURN(layer.slab_hidden, DeviceBuffer::allocate(kSlabHiddenBytes, name("activations")));
    RETURN_IF_ERROR(check(cudaMemset(layer.slab_hidden.as<void>(), 0xFF, kSlabHiddenBytes), "activations"));
    const std::vector<float> scales(kSlabRows, 1.0f / layer.mlp_factor);
    RETURN_IF_ERROR(check(cudaMemcpy(slab_scales_.as<float>() + index * kSlabRows, scales.data(),
                                     kSlabRows * sizeof(float), cudaMemcpyHostToDevice),
                          "activations"));
    fc1.data = layer.fc1_slabs.as<uint8_t>(), fc2.data = layer.fc2_slabs.as<uint8_t>();
  }
  const Kind experts = kind_of(w.gate.first.format, DenseFormat::kAsLoaded);
  ASSIGN_OR_RETURN(layer.gate_up, up.experts({w.gate, w.up}, experts, Rows::kPairs, name("gate_up experts"),
                                             slabs_ ? &fc1 : nullptr));
  ASSIGN_OR_RETURN(layer.down, up.experts({w.down}, kind_of(w.down.first.format, DenseFormat::kAsLoaded),
                                          Rows::kPlain, name("down experts"), slabs_ ? &fc2 : nullptr));
  return {};
}

// The decode kernel reads the experts in an order of its own, and the kernels for more tokens in theirs: both
// are kept where the memory allows it, which for gpt-oss-120b takes 122 GB.
bool CudaBackend::wants_slabs(const ModelWeights& weights) const {
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

Status CudaBackend::load(const ModelConfig& config, const ModelWeights& weights,
                         const LoadProgress& progress) {
  RETURN_IF_ERROR(validate(weights, config));
  RETURN_IF_ERROR(unsupported(config));
  config_ = config;
  rope_ = make_rope_table(config.rope, config.head_dim);
  layers_.clear();
  layers_.resize(config.layers);
  slabs_ = wants_slabs(weights);
  ASSIGN_OR_RETURN(slab_scales_,
                   DeviceBuffer::allocate(config.layers * kSlabRows * sizeof(float), "activations"));
  ASSIGN_OR_RETURN(Uploader up, Uploader::create(stream_));
  const auto done = [&](int layer, int count) {
    if (weights.release) weights.release(layer);
    if (progress) progress(count, config.layers + 1);
  };
  ASSIGN_OR_RETURN(embed_, up.table(weights.embed, "embedding"));
  ASSIGN_OR_RETURN(head_, up.matrix({weights.head}, kind_of(weights.head.format, options_.dense),
                                    Rows::kPlain, 0, "lm_head"));
  float top = 0;
  ASSIGN_OR_RETURN(final_norm_, up.vector({weights.final_norm}, "final norm", &top));
  final_factor_ = f16_factor(config.hidden, top);
  done(-1, 1);
  for (int i = 0; i < config.layers; ++i) {
    RETURN_IF_ERROR(load_layer(up, i, weights.layers[i]));
    done(i, i + 2);
  }
  ASSIGN_OR_RETURN(inverse_frequency_,
                   DeviceBuffer::allocate(rope_.inverse_frequency.size() * sizeof(double), "RoPE"));
  RETURN_IF_ERROR(check(cudaMemcpy(inverse_frequency_.as<double>(), rope_.inverse_frequency.data(),
                                   inverse_frequency_.bytes(), cudaMemcpyHostToDevice),
                        "RoPE"));
  return alloc_arena();
}

Status CudaBackend::alloc_arena() {
  const size_t rows = options_.max_rows, hidden = config_.hidden, pairs = rows * config_.experts_per_token;
  const struct {
    DeviceBuffer* buffer;
    size_t bytes;
  } parts[] = {
      {&x_, rows * hidden * 4},
      {&normed_, rows * hidden * 2},
      {&normed_f32_, rows * hidden * 4},
      {&q_, rows * config_.q_size() * 2},
      {&attended_, rows * config_.q_size() * 2},
      {&rotation_, rows * config_.head_dim / 2 * sizeof(float2)},
      {&router_logits_, rows * config_.experts * 4},
      {&expert_ids_, pairs * 4},
      {&expert_weights_, pairs * 4},
      {&slots_, pairs * 4},
      {&slot_rows_, pairs * 4},
      {&jobs_, (pairs + config_.experts) * sizeof(Job)},
      {&job_count_, sizeof(int)},
      {&hidden_, pairs * config_.intermediate * 2},
      {&expert_out_, pairs * hidden * 4},
      {&arrived_, rows * config_.kv_heads * sizeof(int)},
      {&fault_, sizeof(int)},
  };
  for (const auto& part : parts) {
    ASSIGN_OR_RETURN(*part.buffer, DeviceBuffer::allocate(part.bytes, "activations"));
  }
  ASSIGN_OR_RETURN(pinned_fault_, PinnedBuffer::allocate(sizeof(int)));
  return check(cudaDeviceSynchronize(), "activations");
}

Status CudaBackend::alloc_kv(const KvLayout& layout) {
  if (layout.page_tokens != kPageTokens)
    return invalid("cuda: pages hold {} tokens, not {}", kPageTokens, layout.page_tokens);
  for (auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
  kv_layout_ = layout;
  for (int i = 0; i < config_.layers; ++i) {
    const size_t pages = config_.sliding[i] ? layout.window_pages : layout.full_pages;
    const size_t bytes = pages * kPageTokens * config_.kv_size() * sizeof(uint16_t);
    layers_[i].k = {}, layers_[i].v = {};
    ASSIGN_OR_RETURN(layers_[i].k, DeviceBuffer::allocate(bytes, "the KV cache"));
    ASSIGN_OR_RETURN(layers_[i].v, DeviceBuffer::allocate(bytes, "the KV cache"));
  }
  const size_t splits = layout.full_pages / kSplitPages + 2 * static_cast<size_t>(options_.max_rows);
  partial_ = {};
  ASSIGN_OR_RETURN(partial_,
                   DeviceBuffer::allocate(splits * config_.heads * (config_.head_dim + 2) * sizeof(float),
                                          "attention over splits"));
  input_capacity_ = 32 * static_cast<size_t>(options_.max_rows) + layout.full_pages + layout.window_pages;
  return check(cudaDeviceSynchronize(), "the KV cache");
}

// ---- a step ----

Status CudaBackend::begin_step(const Batch& batch) {
  RETURN_IF_ERROR(validate(batch, config_, kv_layout_, options_.max_rows));
  const int tile = tile_tokens(config_.heads, config_.kv_heads);
  fault_status_ = Status();
  shape_ = shape_of(batch, tile);
  at_ = layout_of(shape_);
  pack(batch, shape_, tile, config_.window, packed_);
  pending_experts_ = false;
  keys_ = window_keys_ = cached_ = window_cached_ = 0;
  for (const int position : batch.positions) {
    keys_ += position + 1;
    window_keys_ += std::min(position + 1, config_.window);
  }
  for (const Sequence& s : batch.sequences) {
    cached_ += s.context;
    window_cached_ += std::min(s.context, config_.window + s.rows - 1);
  }
  const size_t bytes = packed_.size() * sizeof(int32_t);
  if (inputs_.bytes() < bytes) {  // page tables may share pages: their length has no bound but the batch's
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "step"));
    for (auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
    graphs_.clear();
    const size_t room = std::max(2 * bytes, input_capacity_ * sizeof(int32_t));
    ASSIGN_OR_RETURN(inputs_, DeviceBuffer::allocate(room, "step inputs"));
    ASSIGN_OR_RETURN(pinned_inputs_, PinnedBuffer::allocate(room));
  }
  if (shape_.logit_rows > logit_capacity_) {
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "step"));
    for (auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
    graphs_.clear();
    logit_capacity_ = 0;
    const size_t logit_bytes = static_cast<size_t>(shape_.logit_rows) * config_.vocab * sizeof(float);
    logits_ = {};
    ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(logit_bytes, "logits"));
    ASSIGN_OR_RETURN(pinned_logits_, PinnedBuffer::allocate(logit_bytes));
    logit_capacity_ = shape_.logit_rows;
  }
  std::memcpy(pinned_inputs_.as<int32_t>(), packed_.data(), bytes);
  RETURN_IF_ERROR(check(cudaMemcpyAsync(inputs_.as<int32_t>(), pinned_inputs_.as<int32_t>(), bytes,
                                        cudaMemcpyHostToDevice, stream_),
                        "step inputs"));
  return begin_graph();
}

// Steps that only decode come again and again with the same shape: their kernels are captured once.
Status CudaBackend::begin_graph() {
  replaying_ = capturing_ = false;
  if (shape_.prefill_tiles > 0 || timed_ || options_.router_trace) return {};
  if (graphs_.contains(shape_)) {
    replaying_ = true;
    return {};
  }
  RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
  capturing_ = true;
  return {};
}

Status CudaBackend::end_graph() {
  if (capturing_) {
    constexpr size_t kMostGraphs = 256;
    cudaGraph_t graph = nullptr;
    const Status captured = check(cudaStreamEndCapture(stream_, &graph), "capture");
    capturing_ = false;
    if (!fault_status_.ok() || !captured.ok()) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      return fault_status_.ok() ? captured : fault_status_;
    }
    if (graphs_.size() >= kMostGraphs) {
      for (auto& [shape, old] : graphs_) cudaGraphExecDestroy(old);
      graphs_.clear();
    }
    cudaGraphExec_t executable = nullptr;
    const Status made = check(cudaGraphInstantiate(&executable, graph, 0), "graph");
    cudaGraphDestroy(graph);
    RETURN_IF_ERROR(made);
    graphs_[shape_] = executable;
    replaying_ = true;
  }
  if (!replaying_) return {};
  replaying_ = false;
  return check(cudaGraphLaunch(graphs_.at(shape_), stream_), "graph");
}

template <typename Body>
void CudaBackend::timed(Op op, double bytes, double flops, Body&& body) {
  profile_[op].calls += 1, profile_[op].bytes += bytes, profile_[op].flops += flops;
  if (replaying_ || !fault_status_.ok()) return;
  if (!timed_) {
    fault_status_ = body();
    return;
  }
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  cudaEventRecord(events[0], stream_);
  fault_status_ = body();
  cudaEventRecord(events[1], stream_);
  float ms = 0;
  if (fault_status_.ok()) fault_status_ = check(cudaEventSynchronize(events[1]), kOpNames[op]);
  cudaEventElapsedTime(&ms, events[0], events[1]);
  profile_[op].seconds += ms * 1e-3;
  for (const cudaEvent_t event : events) cudaEventDestroy(event);
}

void CudaBackend::embed() {
  timed(kEmbed, static_cast<double>(shape_.rows) * embed_.row_bytes, 0, [&]() -> Status {
    RETURN_IF_ERROR(rotations(input(at_.positions), shape_.rows, inverse_frequency_.as<double>(),
                              config_.head_dim / 2, rope_.attention_factor, rotation_.as<float2>(), stream_));
    const auto* data = embed_.data.as<uint8_t>();
    return cuda::embed(
        {embed_.format, 0, embed_.row_bytes, embed_.cols / kBlock, data, data + embed_.scale_offset},
        embed_.cols, input(at_.tokens), shape_.rows, x_.as<float>(), stream_);
  });
}

Norm CudaBackend::norm_of(const DeviceBuffer& weight, float factor, bool bf16, int code, int rows) {
  const bool pending = std::exchange(pending_experts_, false);
  return {.x = x_.as<float>(),
          .rows = rows,
          .hidden = config_.hidden,
          .eps = static_cast<float>(config_.rms_eps),
          .factor = bf16 ? 1.0f : factor,
          .weight = weight.as<float>(),
          .out = normed_.as<void>(),
          .bf16 = bf16,
          .expert_out = pending ? expert_out_.as<float>() : nullptr,
          .expert_weights = expert_weights_.as<float>(),
          .slots = slots_.as<int32_t>(),
          .top_k = config_.experts_per_token,
          .fault = fault_.as<int>(),
          .code = code};
}

// Activations of a matrix: its tokens one by one.
Activations dense(const Matrix& w, const DeviceBuffer& x, float factor, int rows) {
  return {.x = x.as<void>(), .factor = takes_bf16(w.kind) ? 1.0f : 1.0f / factor, .tokens = rows};
}

void CudaBackend::qkv(int index) {
  Layer& layer = layers_[index];
  timed(kQkv, layer.qkv.bytes(), 2.0 * shape_.rows * layer.qkv.rows * layer.qkv.cols, [&]() -> Status {
    RETURN_IF_ERROR(norm(
        norm_of(layer.attn_norm, layer.attn_factor, takes_bf16(layer.qkv.kind), 2 * index + 1, shape_.rows),
        stream_));
    return gemm(layer.qkv, dense(layer.qkv, normed_, layer.attn_factor, shape_.rows),
                Qkv{.bias = layer.qkv_bias.as<float>(),
                    .head_dim = config_.head_dim,
                    .heads = config_.heads,
                    .kv_heads = config_.kv_heads,
                    .rotation = rotation_.as<float2>(),
                    .q = q_.as<__nv_bfloat16>(),
                    .k = layer.k.as<__nv_bfloat16>(),
                    .v = layer.v.as<__nv_bfloat16>(),
                    .slots = input(config_.sliding[index] ? at_.window_slots : at_.full_slots)},
                stream_);
  });
}

void CudaBackend::attend(int index) {
  const Layer& layer = layers_[index];
  const bool sliding = config_.sliding[index];
  const double keys = sliding ? window_keys_ : keys_, cached = sliding ? window_cached_ : cached_;
  timed(kAttend, cached * 4 * config_.kv_size(), keys * 4 * config_.q_size(), [&]() -> Status {
    Attention p{.q = q_.as<__nv_bfloat16>(),
                .k = layer.k.as<__nv_bfloat16>(),
                .v = layer.v.as<__nv_bfloat16>(),
                .sinks = layer.sinks.as<float>(),
                .positions = input(at_.positions),
                .pages = input(0),
                .page_start = input(sliding ? at_.window_tables : at_.full_tables),
                .heads = config_.heads,
                .kv_heads = config_.kv_heads,
                .head_dim = config_.head_dim,
                .window = sliding ? config_.window : 0,
                .out = attended_.as<void>(),
                .bf16 = takes_bf16(layer.o.kind)};
    if (shape_.prefill_tiles > 0) {
      p.tiles = reinterpret_cast<const RowTile*>(input(at_.prefill_tiles)),
      p.tile_count = shape_.prefill_tiles;
      RETURN_IF_ERROR(attend_prefill(p, stream_));
    }
    if (shape_.decode_tiles > 0) {
      const int window_splits = (config_.window / kPageTokens + kSplitPages) / kSplitPages + 1;
      p.tiles = reinterpret_cast<const RowTile*>(input(at_.decode_tiles)), p.tile_count = shape_.decode_tiles;
      p.splits = sliding ? std::min(window_splits, shape_.full_splits) : shape_.full_splits;
      p.partial = partial_.as<float>();
      p.partial_start = input(sliding ? at_.window_partials : at_.full_partials);
      p.arrived = arrived_.as<int>();
      RETURN_IF_ERROR(attend_decode(p, stream_));
    }
    return {};
  });
}

void CudaBackend::project(int index) {
  const Layer& layer = layers_[index];
  timed(kProject, layer.o.bytes(), 2.0 * shape_.rows * layer.o.rows * layer.o.cols, [&] {
    return gemm(layer.o, dense(layer.o, attended_, 1.0f, shape_.rows),
                Store{.out = x_.as<float>(),
                      .stride = config_.hidden,
                      .bias = layer.o_bias.as<float>(),
                      .rows = config_.hidden,
                      .add = true},
                stream_);
  });
}

// Distinct experts that rows * top_k even choices hit.
double CudaBackend::expected_experts() const {
  const double experts = config_.experts;
  return experts * (1 - std::pow(1 - config_.experts_per_token / experts, shape_.rows));
}

// Tokens of an expert's tile: room for twice the average, so that few experts need a second pass over their
// weights.
int expert_tile(int rows, int top_k, int experts) {
  if (rows <= 8) return 8;
  const int twice = (2 * rows * top_k + experts - 1) / experts;
  return twice <= 8 ? 8 : twice <= 16 ? 16 : twice <= 32 ? 32 : twice <= 128 ? 64 : 128;
}

Status CudaBackend::launch_moe(int index) {
  const Layer& layer = layers_[index];
  const bool bf16 = takes_bf16(layer.gate_up.kind);
  const int top_k = config_.experts_per_token, tile = expert_tile(shape_.rows, top_k, config_.experts);
  Norm normed = norm_of(layer.mlp_norm, layer.mlp_factor, bf16, 2 * index + 2, shape_.rows);
  const Router logits{.x = normed_f32_.as<float>(),
                      .weight = layer.router.as<float>(),
                      .bias = layer.router_bias.as<float>(),
                      .logits = router_logits_.as<float>(),
                      .rows = shape_.rows,
                      .hidden = config_.hidden,
                      .experts = config_.experts};
  const Route routing{.logits = router_logits_.as<float>(),
                      .rows = shape_.rows,
                      .experts = config_.experts,
                      .top_k = top_k,
                      .tile = tile,
                      .ids = expert_ids_.as<int32_t>(),
                      .weights = expert_weights_.as<float>(),
                      .slots = slots_.as<int32_t>(),
                      .slot_rows = slot_rows_.as<int32_t>(),
                      .jobs = decodes_in_slabs() && config_.experts <= 128 ? nullptr : jobs_.as<Job>(),
                      .job_count = job_count_.as<int>()};
  if (can_choose(logits, routing)) {
    RETURN_IF_ERROR(choose(normed, logits, routing, arrived_.as<int>(), stream_));
  } else {
    normed.out_f32 = normed_f32_.as<float>();
    RETURN_IF_ERROR(norm(normed, stream_));
    RETURN_IF_ERROR(router(logits, stream_));
    RETURN_IF_ERROR(route(routing, stream_));
  }
  if (options_.router_trace) RETURN_IF_ERROR(trace_router(index));
  if (decodes_in_slabs()) return launch_slabs(index);
  Activations act{.x = normed_.as<void>(),
                  .rows = slot_rows_.as<int32_t>(),
                  .factor = bf16 ? 1.0f : 1.0f / layer.mlp_factor,
                  .tokens = max_jobs(shape_.rows, config_.experts, top_k, tile),
                  .jobs = jobs_.as<Job>(),
                  .job_count = job_count_.as<int>(),
                  .tile = tile};
  RETURN_IF_ERROR(gemm(layer.gate_up, act,
                       SwiGlu{.out = hidden_.as<void>(),
                              .bf16 = takes_bf16(layer.down.kind),
                              .intermediate = config_.intermediate,
                              .gate_bias = layer.gate_bias.as<float>(),
                              .up_bias = layer.up_bias.as<float>(),
                              .alpha = static_cast<float>(config_.swiglu_alpha),
                              .limit = static_cast<float>(config_.swiglu_limit)},
                       stream_));
  act.x = hidden_.as<void>(), act.rows = nullptr, act.factor = 1.0f;
  pending_experts_ = true;
  return gemm(layer.down, act,
              Store{.out = expert_out_.as<float>(),
                    .stride = config_.hidden,
                    .bias = layer.down_bias.as<float>(),
                    .rows = config_.hidden},
              stream_);
}

// Adds to the residual by itself. Every layer has its own hidden buffer, which the next layer's launch
// clears.
Status CudaBackend::launch_slabs(int index) {
  const Layer& layer = layers_[index];
  const Layer& before = layers_[(index + config_.layers - 1) % config_.layers];
  if (config_.layers == 1)
    RETURN_IF_ERROR(
        check(cudaMemsetAsync(layer.slab_hidden.as<void>(), 0xFF, kSlabHiddenBytes, stream_), "moe"));
  return sm90a::moe_decode(
      {.fc1 = layer.fc1_slabs.as<uint8_t>(),
       .fc2 = layer.fc2_slabs.as<uint8_t>(),
       .x = normed_.as<__half>(),
       .x_scale = slab_scales_.as<float>() + index * kSlabRows,
       .ids = expert_ids_.as<int>(),
       .weights = expert_weights_.as<float>(),
       .residual = x_.as<float>(),
       .out = x_.as<float>(),
       .h = layer.slab_hidden.as<__half>(),
       .h_clear = before.slab_hidden.as<__half>(),
       .clear_vectors = config_.layers == 1 ? 0 : static_cast<int>(kSlabHiddenBytes / 16),
       .tokens = shape_.rows},
      stream_);
}

Status CudaBackend::trace_router(int index) {
  std::vector<float> logits(static_cast<size_t>(shape_.rows) * config_.experts);
  RETURN_IF_ERROR(check(cudaMemcpyAsync(logits.data(), router_logits_.as<float>(),
                                        logits.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
                        "router trace"));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "router trace"));
  for (int row = 0; row < shape_.rows; ++row)
    options_.router_trace(
        index, row, std::span(logits).subspan(static_cast<size_t>(row) * config_.experts, config_.experts));
  return {};
}

void CudaBackend::moe(int index) {
  const Layer& layer = layers_[index];
  const double share = expected_experts() / config_.experts;
  timed(kMoe,
        (layer.gate_up.bytes() + layer.down.bytes()) * share + static_cast<double>(layer.router.bytes()),
        6.0 * shape_.rows * config_.experts_per_token * config_.hidden * config_.intermediate,
        [&] { return launch_moe(index); });
}

void CudaBackend::unembed(std::span<float> logits) {
  logits_out_ = logits;
  const int rows = shape_.logit_rows;
  timed(kUnembed, rows > 0 ? head_.bytes() : 0, 2.0 * rows * head_.rows * head_.cols, [&]() -> Status {
    // The fault flag is read also by a step that wants no logits: the norm would see what the last layer
    // left.
    if (rows > 0) {
      Norm last = norm_of(final_norm_, final_factor_, takes_bf16(head_.kind), 2 * config_.layers + 1, rows);
      last.row_map = input(at_.logit_rows);
      RETURN_IF_ERROR(norm(last, stream_));
      RETURN_IF_ERROR(gemm(head_, dense(head_, normed_, final_factor_, rows),
                           Store{.out = logits_.as<float>(), .stride = config_.vocab, .rows = config_.vocab},
                           stream_));
      RETURN_IF_ERROR(check(cudaMemcpyAsync(pinned_logits_.as<float>(), logits_.as<float>(),
                                            logits.size_bytes(), cudaMemcpyDeviceToHost, stream_),
                            "logits"));
    }
    return check(cudaMemcpyAsync(pinned_fault_.as<int>(), fault_.as<int>(), sizeof(int),
                                 cudaMemcpyDeviceToHost, stream_),
                 "logits");
  });
}

Status CudaBackend::end_step() {
  RETURN_IF_ERROR(end_graph());
  RETURN_IF_ERROR(fault_status_);
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "step"));
  if (const int code = *pinned_fault_.as<int>(); code != 0) {
    RETURN_IF_ERROR(check(cudaMemsetAsync(fault_.as<int>(), 0, sizeof(int), stream_), "step"));
    const int layer = (code - 1) / 2;
    const char* op = layer == config_.layers ? "unembed" : code % 2 == 1 ? "qkv" : "moe";
    return error(StatusCode::kInternal, "layer {} {}: an activation is NaN or infinite", layer, op);
  }
  if (!logits_out_.empty())
    std::memcpy(logits_out_.data(), pinned_logits_.as<float>(), logits_out_.size_bytes());
  return {};
}

}  // namespace
}  // namespace cuda

std::string cuda_absent() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return {};
  cudaGetLastError();
  return code == cudaSuccess ? "no CUDA device" : cudaGetErrorString(code);
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions& options) {
  if (const std::string reason = cuda_absent(); !reason.empty())
    return invalid("device cuda: {}; use --device cpu", reason);
  int devices = 0;
  RETURN_IF_ERROR(cuda::check(cudaGetDeviceCount(&devices), "device"));
  if (options.device < 0 || options.device >= devices)
    return invalid("device cuda:{}: this machine has devices 0 to {}", options.device, devices - 1);
  auto backend = std::make_unique<cuda::CudaBackend>(options);
  RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace moesaic
