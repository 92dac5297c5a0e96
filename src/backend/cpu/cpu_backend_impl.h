// The cpu backend's class: loading in cpu_load.cpp, a step in cpu_step.cpp, measurements in cpu_tuner.cpp.
// The ops of its layers are those of layer_ops.h.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/bandwidth.h"
#include "backend/cpu/cpu_draft.h"
#include "backend/cpu/layer_loader.h"
#include "backend/cpu/probe.h"
#include "backend/host_kv_copier.h"
#include "backend/profiling.h"
#include "backend/tuner.h"
#include "base/cpu_topology.h"
#include "base/seconds.h"

namespace moesaic::cpu {

enum Op { kEmbed, kQkv, kAttend, kProject, kMoe, kUnembed, kOps };
constexpr std::array<const char*, kOps> kOpNames = {"embed", "qkv", "attend", "project", "moe", "unembed"};

class CpuBackend final : public Backend, public Profiler, public Tuner {
 public:
  // prefetch: as asked for, instead of measured.
  CpuBackend(const Kernels& kernels, const BackendOptions& options, std::optional<GemmTuning> prefetch)
      : kernels_(kernels),
        options_(options),
        asked_prefetch_(prefetch),
        topology_(read_cpu_topology(options.system_root, current_affinity())),
        plan_(plan_threads(topology_, options.threads, options.cpu_pin)),
        pool_(plan_) {}

  BackendCaps caps() const override;
  DeviceInfo device() const override;
  std::vector<std::string> describe() const override;
  Profiler* profiler() override { return this; }
  Tuner* tuner() override { return this; }
  DraftHead* draft_head() override { return &draft_head_; }
  double read_bandwidth() override;
  double multiply_rate() override;
  // int8 K, int16 V and a float scale of each: kv_cache.h.
  double kv_token_bytes(const ModelConfig& c) const override {
    return static_cast<double>(options_.rank.share.kv_heads(c.kv_heads).count) * (3.0 * c.head_dim + 8);
  }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& whole,
                                 const KvLayout& layout) override;
  // Ranks hold all of their parts.
  bool hold_experts(double share) override {
    if (!options_.rank.alone()) return false;
    options_.held_experts = share;
    return true;
  }
  double held_experts() const override { return options_.held_experts; }
  Status load(const ModelConfig& config, const ModelWeights& whole, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  std::string kv_page_format() const override;
  size_t kv_page_bytes() const override;
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override;
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override;
  std::unique_ptr<KvCopier> kv_copier() override { return std::make_unique<HostKvCopier>(*this); }
  Status begin_step(const Batch& batch) override;
  void embed() override;
  void qkv(int layer) override;
  void attend(int layer) override;
  void project(int layer) override;
  void moe(int layer) override;
  void unembed(std::span<float> logits) override;
  Status end_step() override { return std::exchange(fault_, Status()); }
  std::vector<OpProfile> profile() const override { return {profile_.begin(), profile_.end()}; }
  void reset_profile() override;
  std::vector<OpSpan> last_step() const override { return spans_; }
  Result<ReadTuning> tune_reads(const std::string& folder) override;

 private:
  // Adds a scope, an op of a layer, to the profile and to the last step.
  class Timer {
   public:
    Timer(CpuBackend& backend, Op op, int layer, double bytes, double flops)
        : profile_(backend.profile_[op]),
          spans_(backend.spans_),
          start_(Clock::now()),
          span_{.op = kOpNames[op], .layer = layer, .bytes = bytes, .flops = flops} {}
    ~Timer() {
      span_.begin = std::chrono::duration<double>(start_.time_since_epoch()).count();
      span_.seconds = seconds_since(start_);
      profile_.calls += 1, profile_.seconds += span_.seconds;
      profile_.bytes += span_.bytes, profile_.flops += span_.flops;
      spans_.push_back(std::move(span_));
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    // For bytes that are known only when they were read.
    void add_bytes(double bytes) { span_.bytes += bytes; }

   private:
    using Clock = std::chrono::steady_clock;
    OpProfile& profile_;
    std::vector<OpSpan>& spans_;
    const Clock::time_point start_;
    OpSpan span_;
  };

  std::array<std::span<std::byte>, 4> kv_page(int layer, int32_t page);
  DecodeProbe make_probe();
  ChosenTuning choose_tuning();
  void norm_rows(const std::vector<float>& weight, int layer, const char* op);
  std::span<const LayerRow> rows_of(int layer) const {
    return config_.sliding[layer] ? window_rows_ : full_rows_;
  }
  void fail(int layer, const char* op);

  const Kernels& kernels_;
  BackendOptions options_;
  std::optional<GemmTuning> asked_prefetch_;
  CpuTopology topology_;
  ThreadPlan plan_;
  ThreadPool pool_;
  ModelConfig config_;
  RopeTable rope_;
  std::vector<Layer> layers_;
  Table embed_;
  std::vector<float> final_norm_;
  PackedMatrix head_;
  ChosenTuning chosen_;
  LayerOps ops_{kernels_, pool_, chosen_, options_.moe_path, options_.rank};
  std::vector<ReadPattern> read_patterns_;  // the best, once there was a search
  KvLayout kv_layout_;

  // One step.
  Batch batch_;
  std::vector<LayerRow> full_rows_, window_rows_;
  std::vector<float> x_, normed_;  // [rows, hidden]: the residual stream
  std::vector<float> logits_;      // [logit rows, rows of head_], of a rank that does not give them
  Status fault_;
  FileReads file_reads_;  // while it was loaded
  std::array<OpProfile, kOps> profile_;
  std::vector<OpSpan> spans_;  // the last step's
  CpuDraftHead draft_head_{{kernels_, pool_, options_, config_, embed_.view, head_, chosen_, kv_layout_,
                            batch_, [this] { return !layers_.empty() && layers_[0].kv.pages > 0; }}};
};

}  // namespace moesaic::cpu
