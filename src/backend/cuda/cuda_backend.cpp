#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/ops/attention.h"
#include "backend/cuda/ops/linear.h"
#include "backend/cuda/ops/moe.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/exchange.h"
#include "backend/cuda/runtime/launch_log.h"
#include "backend/cuda/runtime/op_timer.h"
#include "backend/cuda/runtime/random.h"
#include "backend/cuda/runtime/replay_timer.h"
#include "backend/cuda/runtime/step_input.h"
#include "backend/cuda/weights/repack.h"
#include "base/error.h"

namespace moesaic {
namespace cuda {
namespace {

enum Op { kEmbed, kQkv, kAttend, kProject, kMoe, kUnembed, kOps };
constexpr std::array<const char*, kOps> kOpNames = {"embed", "qkv", "attend", "project", "moe", "unembed"};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options) : options_(options) {}
  ~CudaBackend() override;
  Status open();

  BackendCaps caps() const override;
  double read_bandwidth() override;
  double kv_token_bytes(const ModelConfig& config) const override {
    return 2.0 * kv_element_bytes() * config.kv_size();
  }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  double available_memory() const override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  bool can_draw() const override { return draws_; }
  Status drawn(std::span<SampledToken> tokens) override;
  Status begin_step(const Batch& batch) override;
  void embed() override;
  void qkv(int layer) override;
  void attend(int layer) override;
  void project(int layer) override;
  void moe(int layer) override;
  void unembed(std::span<float> logits) override;
  Status end_step() override;
  std::vector<OpProfile> profile() const override;
  void reset_profile() override;
  void time_ops(bool on) override {
    timed_ = on;
    launches_.clear();
  }
  std::span<const MoeWay> moe_ways() const override {
    return model_.layers.empty() ? std::span<const MoeWay>() : ways_of(model_);
  }
  std::string_view moe_choice(int rows) override { return moe_.way_for(model_, rows).name; }
  TuningKey tuning_key() const override;
  Result<OpTiming> time_moe(int rows, double seconds, MoeFrom from, std::string_view way) override;

 private:
  std::vector<Wanted> arena(const ModelConfig& config);
  size_t kv_element_bytes() const { return options_.kv == KvFormat::kFp8 ? 1 : 2; }
  Status make_room();
  void drop_graphs();
  Status retire_graphs(const char* what);
  Status fault_of(int code);
  Status begin_graph();
  Status end_graph();
  template <typename Body>
  void timed(Op op, double bytes, double flops, Body&& body);
  Norm norm_of(const DeviceBuffer& weight, float factor, bool bf16, int code, int rows,
               const DeferredResidual& deferred);
  LinearSetup linear_setup() { return {target_, model_.slab_layout, tiles_.as<void>(), stream_}; }
  const int32_t* input(int offset) const { return exchange_.input(offset); }
  double expected_experts() const;
  double moe_bytes(const Layer& layer) const;
  double moe_flops() const;
  Norm moe_norm(int index, const DeferredResidual& deferred);

  BackendOptions options_;
  cudaStream_t stream_ = nullptr;
  std::string name_;
  double peak_flops_ = 0;
  Target target_;
  Model model_;
  Moe moe_;
  KvLayout kv_layout_;

  // The arena, for max_rows rows.
  DeviceBuffer x_, normed_, q_, attended_, tiles_, rotation_, fault_, logits_;
  PinnedBuffer pinned_fault_, pinned_logits_;
  Exchange exchange_;
  bool draws_ = false;
  size_t input_capacity_ = 0;

  // One step.
  StepShape shape_;
  StepLayout at_;
  std::vector<int32_t> packed_;
  std::span<float> logits_out_;
  Status fault_status_;
  DeferredResidual deferred_;  // what the last moe() left for the next norm to add
  bool replaying_ = false, capturing_ = false, timed_ = false;
  std::map<StepShape, cudaGraphExec_t> graphs_;
  double keys_ = 0, window_keys_ = 0, cached_ = 0, window_cached_ = 0;  // of the step, for the profile
  std::array<OpProfile, kOps> profile_;
  LaunchLog launches_;
  OpTimer timer_;
};

CudaBackend::~CudaBackend() {
  const DeviceGuard guard(options_.device);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  drop_graphs();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaBackend::drop_graphs() {
  for (auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

// Before memory moves that graphs know of: none runs, and none is kept.
Status CudaBackend::retire_graphs(const char* what) {
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), what));
  drop_graphs();
  return {};
}

Status CudaBackend::open() {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, options_.device), "device"));
  RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
  // Of a full chip: 989 TFLOP/s on an H100 or H200 SXM, BF16 without sparsity.
  target_ = target_of(properties.major, properties.minor, options_);
  options_.moe_path = target_.moe_path, options_.batch_invariant = target_.batch_invariant;
  constexpr double kFlopsPerClock = 4096, kClock = 1.83e9;
  peak_flops_ = properties.major == 9 ? properties.multiProcessorCount * kFlopsPerClock * kClock : 0;
  name_ = fmt::format("cuda:{} ({}, sm_{}{})", options_.device, properties.name, properties.major,
                      properties.minor);
  reset_profile();
  return {};
}

BackendCaps CudaBackend::caps() const {
  return {.name = name_,
          .threads = 1,
          .prefill_rows = 2048,
          .half_activations = true,
          .rounding = options_.moe_path,
          .peak_flops = peak_flops_};
}

double CudaBackend::read_bandwidth() {
  const DeviceGuard guard(options_.device);
  const Result<double> gb_s = measure_read_bandwidth(stream_);
  return gb_s.ok() ? gb_s.value() : 0;
}

std::vector<OpProfile> CudaBackend::profile() const {
  std::vector<OpProfile> ops(profile_.begin(), profile_.end());
  for (int op = 0; op < kOps; ++op) ops[op].kernels = launches_.kernels(kOpNames[op]);
  return ops;
}

void CudaBackend::reset_profile() {
  for (int op = 0; op < kOps; ++op) profile_[op] = {.op = kOpNames[op]};
}

std::vector<MemoryPart> CudaBackend::memory(const ModelConfig& config, const ModelWeights& weights,
                                            const KvLayout& layout) {
  const DeviceGuard guard(options_.device);
  std::vector<MemoryPart> parts = count_model(config, weights, options_, paths_of(config, weights, options_));
  const double arena_bytes = sum(arena(config)) + sum(moe_.buffers(config, options_.max_rows));
  parts.push_back({"activations", arena_bytes});
  parts.push_back({kCachePart, kv_bytes(layout, config, *this)});
  return parts;
}

double CudaBackend::available_memory() const {
  const DeviceGuard guard(options_.device);
  size_t available = 0, total = 0;
  return check(cudaMemGetInfo(&available, &total), "memory").ok() ? static_cast<double>(available) : 0;
}

Status CudaBackend::load(const ModelConfig& config, const ModelWeights& weights,
                         const LoadProgress& progress) {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  model_ = {};
  ASSIGN_OR_RETURN(model_, load_model(config, weights, options_, progress, stream_));
  moe_.prefer(read_tuning(options_.tuning_folder, tuning_key()));
  RETURN_IF_ERROR(allocate(arena(config), "activations"));
  RETURN_IF_ERROR(allocate(moe_.buffers(config, options_.max_rows), "the experts' activations"));
  ASSIGN_OR_RETURN(pinned_fault_, PinnedBuffer::allocate(sizeof(int)));
  RETURN_IF_ERROR(exchange_.open(options_.max_rows));
  draws_ = select(SampleShape{config.vocab}, target_).ok();
  return check(cudaDeviceSynchronize(), "activations");
}

std::vector<Wanted> CudaBackend::arena(const ModelConfig& config) {
  const size_t rows = options_.max_rows;
  const int widest = std::max(config.hidden, config.q_size());
  return {
      {&x_, rows * config.hidden * 4},
      {&normed_, rows * config.hidden * 2},
      {&q_, rows * config.q_size() * 2},
      {&attended_, rows * config.q_size() * 2},
      {&tiles_,
       std::max((rows + sm90a::kWideTokens) * widest * 2, sm120a::token_buffer_bytes(rows, 1, widest))},
      {&rotation_, rows * config.head_dim / 2 * sizeof(float2)},
      {&fault_, sizeof(int)},
  };
}

Status CudaBackend::alloc_kv(const KvLayout& layout) {
  const DeviceGuard guard(options_.device);
  if (layout.page_tokens != kPageTokens)
    return invalid("cuda: pages hold {} tokens, not {}", kPageTokens, layout.page_tokens);
  RETURN_IF_ERROR(retire_graphs("the KV cache"));
  exchange_.forget();
  kv_layout_ = layout;
  for (int i = 0; i < model_.config.layers; ++i) {
    const size_t pages = model_.config.sliding[i] ? layout.window_pages : layout.full_pages;
    const size_t bytes = pages * kPageTokens * model_.config.kv_size() * kv_element_bytes();
    model_.layers[i].k = {}, model_.layers[i].v = {};
    ASSIGN_OR_RETURN(model_.layers[i].k, DeviceBuffer::allocate(bytes, "the KV cache"));
    ASSIGN_OR_RETURN(model_.layers[i].v, DeviceBuffer::allocate(bytes, "the KV cache"));
  }
  input_capacity_ = 32 * static_cast<size_t>(options_.max_rows) + layout.full_pages + layout.window_pages;
  return check(cudaDeviceSynchronize(), "the KV cache");
}

// ---- a step ----

Status CudaBackend::begin_step(const Batch& batch) {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(validate(batch, model_.config, kv_layout_, options_.max_rows));
  // One order of sums for all batches: single rows go where the others go, since mma.sync and wgmma need not
  // round alike.
  const Tiling tiling{.tokens = tile_tokens(model_.config.heads, model_.config.kv_heads),
                      .decodes = !target_.batch_invariant};
  fault_status_ = Status();
  shape_ = shape_of(batch, tiling);
  at_ = layout_of(shape_);
  pack(batch, shape_, tiling, packed_);
  deferred_ = {};
  keys_ = window_keys_ = cached_ = window_cached_ = 0;
  for (const int position : batch.positions) {
    keys_ += position + 1;
    window_keys_ += std::min(position + 1, model_.config.window);
  }
  for (const Sequence& s : batch.sequences) {
    cached_ += s.context;
    window_cached_ += std::min(s.context, model_.config.window + s.rows - 1);
  }
  RETURN_IF_ERROR(make_room());
  RETURN_IF_ERROR(exchange_.send(shape_, at_, packed_, stream_));
  return begin_graph();
}

// What a captured graph points at does not move while it runs, nor the graph live on once it has moved.
Status CudaBackend::make_room() {
  const int rows = shape_.logit_rows;
  const size_t bytes = rows * static_cast<size_t>(model_.config.vocab) * sizeof(float);
  const bool inputs = exchange_.lacks(packed_.size()), logits = bytes > logits_.bytes(),
             pinned = !shape_.draws && bytes > pinned_logits_.bytes();
  if (!inputs && !logits && !pinned) return {};
  RETURN_IF_ERROR(retire_graphs("step"));
  // Page tables may share pages: their length has no bound but the batch's.
  if (inputs) RETURN_IF_ERROR(exchange_.grow(std::max(2 * packed_.size(), input_capacity_)));
  if (logits) logits_ = {};
  if (logits) {
    ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(bytes / rows * std::bit_ceil<unsigned>(rows), "logits"));
  }
  if (pinned) {
    ASSIGN_OR_RETURN(pinned_logits_, PinnedBuffer::allocate(bytes));
  }
  return {};
}

// Steps that only decode come again and again with the same shape: their kernels are captured once.
Status CudaBackend::begin_graph() {
  replaying_ = capturing_ = false;
  if (timed_) return timer_.begin(stream_);
  const bool decodes = shape_.prefill_tiles == 0 || (target_.portable && shape_.rows == shape_.sequences);
  if (!decodes || options_.router_trace) return {};
  if (graphs_.contains(shape_)) {
    replaying_ = true;
    return {};
  }
  RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
  capturing_ = true;
  return {};
}

Status CudaBackend::end_graph() {
  if (timed_) return timer_.finish(stream_, profile_);
  if (capturing_) {
    constexpr size_t kMostGraphs = 256;
    cudaGraph_t graph = nullptr;
    const Status captured = check(cudaStreamEndCapture(stream_, &graph), "capture");
    capturing_ = false;
    if (!fault_status_.ok() || !captured.ok()) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      return fault_status_.ok() ? captured : fault_status_;
    }
    if (graphs_.size() >= kMostGraphs) RETURN_IF_ERROR(retire_graphs("step"));
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
  const DeviceGuard guard(options_.device);
  const LaunchLog::Scope scope(launches_, kOpNames[op]);
  if (timed_) fault_status_ = timer_.mark(op, stream_);
  if (fault_status_.ok()) fault_status_ = body();
}

void CudaBackend::embed() {
  timed(kEmbed, static_cast<double>(shape_.rows) * model_.embed.row_bytes, 0, [&]() -> Status {
    RETURN_IF_ERROR(rotations(input(at_.positions), shape_.rows, model_.inverse_frequency.as<double>(),
                              model_.config.head_dim / 2, model_.rope.attention_factor,
                              rotation_.as<float2>(), stream_));
    const auto* data = model_.embed.data.as<uint8_t>();
    return cuda::embed({model_.embed.format, 0, model_.embed.row_bytes, model_.embed.cols / kBlock, data,
                        data + model_.embed.scale_offset},
                       model_.embed.cols, input(at_.tokens), shape_.rows, x_.as<float>(), stream_);
  });
}

Norm CudaBackend::norm_of(const DeviceBuffer& weight, float factor, bool bf16, int code, int rows,
                          const DeferredResidual& deferred) {
  return {.x = x_.as<float>(),
          .rows = rows,
          .hidden = model_.config.hidden,
          .eps = static_cast<float>(model_.config.rms_eps),
          .factor = bf16 ? 1.0f : factor,
          .weight = weight.as<float>(),
          .out = normed_.as<void>(),
          .bf16 = bf16,
          .deferred = deferred,
          .fault = fault_.as<int>(),
          .code = code};
}

void CudaBackend::qkv(int index) {
  Layer& layer = model_.layers[index];
  timed(kQkv, layer.qkv.bytes(), 2.0 * shape_.rows * layer.qkv.rows * layer.qkv.cols, [&]() -> Status {
    return linear(layer.qkv,
                  norm_of(layer.attn_norm, layer.attn_factor, takes_bf16(layer.qkv.kind), 2 * index + 1,
                          shape_.rows, std::exchange(deferred_, {})),
                  Qkv{.bias = layer.qkv_bias.as<float>(),
                      .head_dim = model_.config.head_dim,
                      .heads = model_.config.heads,
                      .kv_heads = model_.config.kv_heads,
                      .rotation = rotation_.as<float2>(),
                      .q = q_.as<__nv_bfloat16>(),
                      .k = layer.k.as<void>(),
                      .v = layer.v.as<void>(),
                      .fp8 = options_.kv == KvFormat::kFp8,
                      .slots = input(model_.config.sliding[index] ? at_.window_slots : at_.full_slots)},
                  linear_setup());
  });
}

void CudaBackend::attend(int index) {
  const Layer& layer = model_.layers[index];
  const bool sliding = model_.config.sliding[index];
  const double keys = sliding ? window_keys_ : keys_, cached = sliding ? window_cached_ : cached_;
  timed(kAttend, cached * 2 * kv_element_bytes() * model_.config.kv_size(), keys * 4 * model_.config.q_size(),
        [&]() -> Status {
          Attention p{.q = q_.as<__nv_bfloat16>(),
                      .k = layer.k.as<void>(),
                      .v = layer.v.as<void>(),
                      .fp8 = options_.kv == KvFormat::kFp8,
                      .sinks = layer.sinks.as<float>(),
                      .pages = input(at_.pages),
                      .heads = model_.config.heads,
                      .kv_heads = model_.config.kv_heads,
                      .head_dim = model_.config.head_dim,
                      .window = sliding ? model_.config.window : 0,
                      .sliding = sliding,
                      .out = attended_.as<void>(),
                      .bf16 = takes_bf16(layer.o.kind)};
          if (shape_.prefill_tiles > 0) {
            p.tiles = reinterpret_cast<const RowTile*>(input(at_.prefill_tiles)),
            p.tile_count = shape_.prefill_tiles;
            RETURN_IF_ERROR(cuda::attend(p, false, target_, stream_));
          }
          if (shape_.decode_tiles > 0) {
            p.tiles = reinterpret_cast<const RowTile*>(input(at_.decode_tiles)),
            p.tile_count = shape_.decode_tiles;
            p.shares = shape_.shares;
            RETURN_IF_ERROR(cuda::attend(p, true, target_, stream_));
          }
          return {};
        });
}

void CudaBackend::project(int index) {
  const Layer& layer = model_.layers[index];
  timed(kProject, layer.o.bytes(), 2.0 * shape_.rows * layer.o.rows * layer.o.cols, [&] {
    return linear(layer.o, Activations{.x = attended_.as<void>(), .tokens = shape_.rows},
                  Store{.out = x_.as<float>(),
                        .stride = model_.config.hidden,
                        .bias = layer.o_bias.as<float>(),
                        .rows = model_.config.hidden,
                        .add = true},
                  linear_setup());
  });
}

// Distinct experts that rows * top_k even choices hit.
double CudaBackend::expected_experts() const {
  const double experts = model_.config.experts;
  return experts * (1 - std::pow(1 - model_.config.experts_per_token / experts, shape_.rows));
}

double CudaBackend::moe_bytes(const Layer& layer) const {
  const double share = expected_experts() / model_.config.experts;
  return (layer.gate_up.bytes() + layer.down.bytes()) * share + static_cast<double>(layer.router.bytes());
}

double CudaBackend::moe_flops() const {
  const ModelConfig& c = model_.config;
  return 6.0 * shape_.rows * c.experts_per_token * c.hidden * c.intermediate;
}

Norm CudaBackend::moe_norm(int index, const DeferredResidual& deferred) {
  const Layer& layer = model_.layers[index];
  return norm_of(layer.mlp_norm, layer.mlp_factor, takes_bf16(layer.gate_up.kind), 2 * index + 2, shape_.rows,
                 deferred);
}

void CudaBackend::moe(int index) {
  timed(kMoe, moe_bytes(model_.layers[index]), moe_flops(), [&]() -> Status {
    ASSIGN_OR_RETURN(deferred_,
                     moe_.run(model_, index, moe_norm(index, std::exchange(deferred_, {})),
                              moe_.way_for(model_, shape_.rows), target_, options_.router_trace, stream_));
    return {};
  });
}

TuningKey CudaBackend::tuning_key() const {
  const ModelConfig& c = model_.config;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  TuningKey key{.device = name_.substr(name_.find('(')),  // whatever its index is
                .driver = std::to_string(driver),
                .program = MOESAIC_VERSION,
                .experts = c.experts,
                .top_k = c.experts_per_token,
                .hidden = c.hidden,
                .intermediate = c.intermediate};
  for (const MoeWay& way : moe_ways()) key.ways += fmt::format("{};", way.name);
  return key;
}

Result<OpTiming> CudaBackend::time_moe(int rows, double seconds, MoeFrom from, std::string_view way) {
  if (rows < 1 || rows > options_.max_rows)
    return invalid("{} rows: 1 to {} are possible", rows, options_.max_rows);
  const DeviceGuard guard(options_.device);
  const MoeWay* kernel = &moe_.way_for(model_, rows);
  if (!way.empty()) {
    ASSIGN_OR_RETURN(kernel, Moe::find_way(model_, rows, way));
  }
  shape_ = {.rows = rows};
  launches_.clear();
  const int layers = model_.config.layers;
  const bool from_logits = from == MoeFrom::kLogits;
  const size_t scores = static_cast<size_t>(rows) * model_.config.experts;  // of a layer
  ASSIGN_OR_RETURN(
      const DeviceBuffer logits,
      DeviceBuffer::allocate(from_logits ? layers * scores * sizeof(float) : 0, "the router's logits"));
  const auto logits_of = [&](int layer) { return logits.as<float>() + layer * scores; };
  const auto all_layers = [&]() -> Status {
    const LaunchLog::Scope scope(launches_, kOpNames[kMoe]);
    DeferredResidual deferred;
    for (int i = 0; i < layers; ++i) {
      const Norm norm = moe_norm(i, deferred);
      ASSIGN_OR_RETURN(deferred,
                       from_logits
                           ? moe_.run_from_logits(model_, i, norm, *kernel, logits_of(i), stream_)
                           : moe_.run(model_, i, norm, *kernel, target_, options_.router_trace, stream_));
    }
    return {};
  };
  const int64_t values = int64_t{rows} * model_.config.hidden;
  const auto fresh = [&](int pass) -> Status {
    RETURN_IF_ERROR(fill_random(x_.as<float>(), values, pass, stream_));
    if (!from_logits) return {};
    for (int i = 0; i < layers; ++i)
      RETURN_IF_ERROR(moe_.score_rows(model_, i, moe_norm(i, {}), target_, logits_of(i), stream_));
    return {};
  };
  ASSIGN_OR_RETURN(std::vector<double> times, time_replays(all_layers, fresh, seconds, stream_));
  for (double& t : times) t /= static_cast<double>(layers);
  const Layer& layer = model_.layers[0];
  const double router = from_logits ? static_cast<double>(layer.router.bytes()) : 0;
  // The residual is read and written once.
  return OpTiming{.seconds = std::move(times),
                  .bytes = moe_bytes(layer) - router + 8.0 * static_cast<double>(values),
                  .flops = moe_flops(),
                  .kernels = launches_.kernels(kOpNames[kMoe])};
}

void CudaBackend::unembed(std::span<float> logits) {
  logits_out_ = logits;
  const int rows = shape_.logit_rows;
  timed(kUnembed, rows > 0 ? model_.head.bytes() : 0, 2.0 * rows * model_.head.rows * model_.head.cols,
        [&]() -> Status {
          // The fault flag is read also by a step that wants no logits: the norm would see what the last
          // layer left.
          if (rows > 0) {
            Norm last = norm_of(model_.final_norm, model_.final_factor, takes_bf16(model_.head.kind),
                                2 * model_.config.layers + 1, rows, std::exchange(deferred_, {}));
            last.row_map = input(at_.logit_rows);
            RETURN_IF_ERROR(linear(
                model_.head, last,
                Store{.out = logits_.as<float>(), .stride = model_.config.vocab, .rows = model_.config.vocab},
                linear_setup()));
            if (shape_.draws)
              return exchange_.draw(shape_, at_, logits_.as<float>(), model_.config.vocab, fault_.as<int>(),
                                    stream_);
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
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(end_graph());
  RETURN_IF_ERROR(fault_status_);
  if (shape_.draws) return exchange_.launched(stream_);
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "step"));
  RETURN_IF_ERROR(fault_of(*pinned_fault_.as<int>()));
  if (!logits_out_.empty())
    std::memcpy(logits_out_.data(), pinned_logits_.as<float>(), logits_out_.size_bytes());
  return {};
}

Status CudaBackend::drawn(std::span<SampledToken> tokens) {
  const DeviceGuard guard(options_.device);
  ASSIGN_OR_RETURN(const int code, exchange_.drawn(tokens));
  return fault_of(code);
}

Status CudaBackend::fault_of(int code) {
  if (code == 0) return {};
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "step"));
  exchange_.forget();
  RETURN_IF_ERROR(check(cudaMemsetAsync(fault_.as<int>(), 0, sizeof(int), stream_), "step"));
  const int layer = (code - 1) / 2;
  const char* op = layer == model_.config.layers ? "unembed" : code % 2 == 1 ? "qkv" : "moe";
  return error(StatusCode::kInternal, "layer {} {}: an activation is NaN or infinite", layer, op);
}

}  // namespace
}  // namespace cuda

std::string cuda_absent() {
  int devices = 0, driver = 0, runtime = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return cuda::no_code_for(0);
  cudaGetLastError();
  if (code != cudaErrorInsufficientDriver)
    return code == cudaSuccess ? "no CUDA device" : cudaGetErrorString(code);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  if (driver == 0) return "no NVIDIA driver is loaded";
  return fmt::format("the NVIDIA driver is for CUDA {}, this program needs {}: update the driver",
                     version(driver), version(runtime));
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions& options) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return invalid("device cuda: {}; use --device cpu", cuda_absent());
  if (options.device < 0 || options.device >= devices)
    return invalid("device cuda:{}: this machine has {}", options.device,
                   devices == 1 ? "one, cuda:0" : fmt::format("cuda:0 to cuda:{}", devices - 1));
  if (const std::string reason = cuda::no_code_for(options.device); !reason.empty())
    return invalid("device cuda:{}: {}; use --device cpu", options.device, reason);
  auto backend = std::make_unique<cuda::CudaBackend>(options);
  RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace moesaic
