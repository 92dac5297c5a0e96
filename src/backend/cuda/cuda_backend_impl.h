// The class behind create_cuda_backend(): cuda_backend.cpp opens the device and loads, cuda_step.cpp runs a
// step, cuda_tuner.cpp measures.
#pragma once

#include <array>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/cuda_draft.h"
#include "backend/cuda/kv_copier.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/ops/expert_stream.h"
#include "backend/cuda/ops/layer_ops.h"
#include "backend/cuda/ops/moe.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/gpu_part.h"
#include "backend/cuda/runtime/launch_log.h"
#include "backend/cuda/runtime/op_timer.h"
#include "backend/cuda/step/step_graphs.h"
#include "backend/cuda/step/step_input.h"
#include "backend/cuda/step/step_io.h"
#include "backend/host_placement.h"
#include "backend/profiling.h"
#include "backend/tuner.h"

namespace moesaic::cuda {

enum Op { kEmbed, kQkv, kAttend, kProject, kMoe, kUnembed, kOps };
inline constexpr std::array<const char*, kOps> kOpNames = {"embed",   "qkv", "attend",
                                                           "project", "moe", "unembed"};

class CudaBackend final : public Backend, public Profiler, public Tuner, public HostPlacement {
 public:
  explicit CudaBackend(const BackendOptions& options) : options_(options) {}
  ~CudaBackend() override;
  Status open();

  BackendCaps caps() const override;
  StepCaptures captures() const override { return graphs_.captures(); }
  DeviceInfo device() const override;
  std::vector<std::string> describe() const override;
  double kv_token_bytes(const ModelConfig& config) const override {
    return 2.0 * kv_element_bytes() * cut(layer_shape(config, 0), options_.rank.share).kv_size();
  }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  double available_memory() const override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  std::string kv_page_format() const override;
  size_t kv_page_bytes() const override {
    if (model_.layers.empty()) return 0;
    return 2 * kv_element_bytes() * kv_layout_.page_tokens * model_.layers[0].shape.kv_size();
  }
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override;
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override;
  std::unique_ptr<KvCopier> kv_copier() override {
    return make_kv_copier(options_.device, model_.layers, kv_page_bytes(), StepWait(options_.step_limit));
  }
  bool can_sample() const override { return sample_ctas_ > 0; }
  bool can_edit() const override { return can_sample(); }
  Status edit_rows(std::span<const EditedRow> rows) override;
  Status sampled(std::span<SampledToken> tokens, std::span<float> logits) override;
  Status forget_steps() override;
  Status begin_step(const Batch& batch) override;
  void embed() override;
  void qkv(int layer) override;
  void attend(int layer) override;
  void project(int layer) override;
  void moe(int layer) override;
  void unembed(std::span<float> logits) override;
  bool ops_again() override;
  Status end_step() override;

  // For load(), from ModelWeights::release.
  Status wait_for_kernels() const { return check(cudaStreamSynchronize(stream_), "load"); }
  // A step on a caller's stream, cache and inputs (cuda_packed_step.cpp). The inputs stand in packed_inputs()
  // as layout_of(shape) has them.
  Status room_for_inputs(size_t count) { return step_io_.grow(count); }
  int32_t* packed_inputs() { return step_io_.inputs(); }
  void set_cache(int layer, void* k, void* v) {
    model_.layers[layer].given_k = k, model_.layers[layer].given_v = v;
  }
  Tiling tiling() const;
  // captures: whether the step may be captured here, and replayed. out: the normed rows, BF16.
  Status run_packed(const StepShape& shape, bool captures, void* out, cudaStream_t stream);
  // logits [rows, vocab] of such rows; at most max_rows.
  Status logits_of(const void* normed, int rows, float* logits, cudaStream_t stream);
  // The fault word that an earlier step left: 0, above 0 for a row that is not finite, below 0 for a kernel
  // that gave up. forget_fault() makes an error of it.
  int fault() const { return *pinned_fault_.as<int>(); }
  Status forget_fault(cudaStream_t stream);
  const int* fault_word() const { return fault_.as<int>(); }  // the device's
  Status drop_graphs() { return graphs_.retire("the cache", stream_); }

  DraftHead* draft_head() override { return &draft_head_; }

  // The share is of the host's layers. Below 1 none of their experts come to the device.
  bool hold_experts(double share) override;
  double held_experts() const override { return options_.held_experts; }
  HostPlacement* host_placement() override { return this; }
  const ExpertPlacement& asked() const override { return options_.experts; }
  void place(int host_layers) override { host_layers_ = host_layers; }
  bool placed() const override { return host_layers_.has_value(); }
  int host_layers() const override { return host_layers_.value_or(0); }
  std::vector<MemoryPart> host_memory(const ModelConfig& config, const ModelWeights& weights) const override;
  std::string host_name() const override { return host_.experts() != nullptr ? host_.experts()->name() : ""; }
  double host_read_bandwidth() override {
    return host_.experts() != nullptr ? host_.experts()->read_bandwidth() : 0;
  }

  Profiler* profiler() override { return this; }
  double read_bandwidth() override;
  std::vector<KernelChoice> kernel_choices(int tokens) override;
  std::vector<OpProfile> profile() const override;
  void reset_profile() override;
  std::vector<OpSpan> last_step() const override { return timed_ ? timer_.spans() : std::vector<OpSpan>(); }
  void time_ops(bool on) override {
    timed_ = on;
    launches_.clear();
  }

  Tuner* tuner() override { return this; }
  std::span<const MoeKernelConfig> moe_configs() const override {
    return model_.host_from == 0 ? std::span<const MoeKernelConfig>() : configs_of(model_);
  }
  std::string_view moe_choice(int rows) override { return moe_.config_for(model_, rows).name; }
  TuningKey tuning_key() const override;
  Result<OpTiming> time_moe(int rows, double seconds, MoeFrom from, std::string_view config) override;

 private:
  std::vector<Wanted> arena(const ModelConfig& config);
  static size_t logit_bytes(const ModelConfig& config, int rows) {
    return rows * static_cast<size_t>(config.vocab) * sizeof(float);
  }
  size_t kv_element_bytes() const { return options_.kv == KvFormat::kFp8 ? 1 : 2; }
  Status open_part(const Features& features);
  Status check_streaming();
  Status find_ranks();
  void place_as_asked(const ModelConfig& config, const ModelWeights& weights);
  Status open_host(std::unique_ptr<HostExperts> experts, const ModelWeights& weights);
  Status open_hot(const ModelWeights& weights);
  void keep_hot_counts();
  Result<int> break_even();
  Result<std::unique_ptr<HostExperts>> make_host_experts(const ModelWeights& weights) const;
  Status abandoned(const Status& status);
  Status make_room();
  Status allocate_logits(size_t bytes);
  Attended attended(const Layer& layer) const;
  Status gather_attended();
  Status meet_after_fault();
  SpanScratch span_scratch();
  Status copy_logits();
  bool is_to_be_tuned(const std::vector<TunedStep>& kept) const;
  void tune_experts();
  Result<std::vector<TunedStep>> probe_experts(std::vector<TunedStep> kept);
  Status fault_of(int code);
  Status clear_kv();
  Status begin_graph();
  Status run_normed(void* out);
  // layer: -1 for ops before and behind the layers.
  template <typename Body>
  void timed(Op op, int layer, double bytes, double flops, Body&& body);
  Norm norm_rows(int code, int rows, const DeferredResidual& deferred);
  LinearSetup linear_setup() const { return {target_, model_.slab_layout, tiles_.as<void>(), stream_}; }
  const int32_t* input(int offset) const { return step_io_.input(offset); }
  double expected_experts() const;
  double moe_bytes(const Layer& layer) const;
  double moe_flops() const;
  bool streams(int rows) const { return stream_rows_ > 0 && rows >= stream_rows_; }
  Norm moe_norm(int index, const DeferredResidual& deferred);
  // To the draft head: the residual stream after so many blocks.
  Status tap(int boundary) { return draft_head_.tap(boundary, x_.as<float>(), shape_.rows, deferred_); }

  BackendOptions options_;
  StepWait wait_{options_.step_limit, [this] { return host_.answered(); }};
  GpuPart part_;
  cudaStream_t stream_ = nullptr;
  std::string name_;
  double peak_flops_ = 0;
  double free_at_start_ = 0;  // bytes, when the device was opened
  std::optional<int> host_layers_;
  Target target_;
  LoadedModel model_;
  RankExchange ranks_;
  Status lost_;           // every step's answer once ranks do not agree any more
  bool unclean_ = false;  // a fault may have left values in the KV cache that are not finite
  HostExchange host_;
  ExpertStream expert_stream_;
  HotSlots hot_;
  int stream_rows_ = 0;  // a step of so many rows or more has host layers' experts here; 0: none has
  Moe moe_;
  std::string measured_, measured_stream_, hot_begin_;  // as BackendCaps::measured
  std::string hot_key_;                                 // names the counts that are kept
  KvLayout kv_layout_;

  // The arena, for max_rows rows.
  DeviceBuffer x_, normed_, q_, attended_, tiles_, rotation_, fault_;
  DeviceBuffer spans_;  // SpanScratch's arrivals, then what spans leave; empty with Hopper's prompt kernels
  DeviceBuffer attended_part_;  // for a rank: its heads' [max_rows, q_size]
  OfRanks<float> x_of_, logits_of_;
  OfRanks<uint32_t> attended_of_;
  DeviceBuffer logits_;  // [KvLayout::logit_rows, or the most that a step had, vocab]
  // A rank lacked memory: in the next step all come to make_room() again, those that had enough, too.
  bool lacks_room_ = false;
  PinnedBuffer pinned_fault_;
  StepIo step_io_;
  int sample_ctas_ = 0;  // CTAs that sample a row; 0: the host samples
  size_t input_capacity_ = 0;

  // One step.
  StepShape shape_;
  bool streams_ = false;  // host layers' experts come here
  StepLayout at_;
  std::vector<int32_t> packed_;
  PackedContinuations continued_;
  std::vector<int> first_wanted_;  // beside a draft head, of each sequence its first logit row
  std::span<float> logits_out_;
  std::vector<int32_t> host_rows_;  // Batch::host_rows
  Status fault_status_;
  DeferredResidual deferred_;  // left by the last moe() for the next norm to add
  bool timed_ = false;
  StepGraphs graphs_{wait_};
  double keys_ = 0, window_keys_ = 0, cached_ = 0, window_cached_ = 0;  // counts of the step, for the profile
  std::array<OpProfile, kOps> profile_;
  LaunchLog launches_;
  OpTimer timer_;

  CudaDraftHead draft_head_{
      {.options = options_,
       .target = target_,
       .model = model_,
       .layout = kv_layout_,
       .stream = stream_,
       .wait = wait_,
       .cache_allocated = [this] { return !model_.layers.empty() && model_.layers[0].k.bytes() > 0; },
       .retire_graphs = [this] { return graphs_.retire("taps", stream_); }}};
};

// An exception becomes the op's error. If it left the step, the step would stay half launched, and its stream
// would go on capturing.
template <typename Body>
void CudaBackend::timed(Op op, int layer, double bytes, double flops, Body&& body) {
  profile_[op].calls += 1, profile_[op].bytes += bytes, profile_[op].flops += flops;
  if (graphs_.replaying() || !fault_status_.ok()) return;
  const DeviceGuard guard(options_.device);
  const LaunchLog::Scope scope(launches_, kOpNames[op]);
  try {
    if (timed_) fault_status_ = timer_.mark({op, layer, bytes, flops}, stream_);
    if (fault_status_.ok()) fault_status_ = body();
  } catch (const std::bad_alloc&) {
    fault_status_ = Status(StatusCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& e) {
    fault_status_ = Status(StatusCode::kInternal, e.what());
  }
}

}  // namespace moesaic::cuda
