// The cpu backend's class: loading in cpu_load.cpp, the ops of a step in cpu_step.cpp, what is measured in
// cpu_tuner.cpp.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/bandwidth.h"
#include "backend/cpu/cpu_draft.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kv_cache.h"
#include "backend/cpu/probe.h"
#include "backend/host_kv_copier.h"
#include "backend/profiling.h"
#include "backend/tuner.h"
#include "base/cpu_topology.h"
#include "moe/work_list.h"

namespace moesaic::cpu {

// A LoRA adapter's products, F32: y += up (down x). Of experts: one after the other, as theirs are.
struct PackedLowRank {
  PackedMatrix down, up;
  int64_t rank = 0;  // 0: there is none
  double bytes() const { return rank == 0 ? 0 : down.bytes() + up.bytes(); }
};

struct Layer {
  std::vector<float> attn_norm, mlp_norm, qkv_bias, o_bias, sinks, router_bias;
  PackedMatrix qkv, o, router;
  PackedMatrix gate_up, down;  // experts one after the other; gate and up panels alternate
  std::vector<float> gate_bias, up_bias, down_bias;  // [experts, padded]
  PackedLowRank qkv_adapter, o_adapter, gate_up_adapter, down_adapter;
  KvCache kv;
};

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
  // int8 K, int16 V and a float scale of each: kv_cache.h.
  double kv_token_bytes(const ModelConfig& c) const override { return c.kv_heads * (3.0 * c.head_dim + 8); }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
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
  Result<ReadTuning> tune_reads(const std::string& folder) override;

 private:
  // Adds the time of a scope to one op.
  class Timer {
   public:
    Timer(OpProfile& op, double bytes, double flops) : op_(op), start_(Clock::now()) {
      op.calls += 1, op.bytes += bytes, op.flops += flops;
    }
    ~Timer() { op_.seconds += std::chrono::duration<double>(Clock::now() - start_).count(); }

   private:
    using Clock = std::chrono::steady_clock;
    OpProfile& op_;
    Clock::time_point start_;
  };

  std::array<std::span<std::byte>, 4> kv_page(int layer, int32_t page);
  Result<PackedMatrix> pack(const std::vector<const MatrixView*>& sections, const std::string& name);
  Result<PackedMatrix> pack_experts(const std::vector<const ExpertsView*>& sections, const std::string& name);
  Status load_layer(int index, const LayerWeights& w, Layer& layer);
  Result<PackedLowRank> pack(const LowRank& low, const std::string& name);
  Result<PackedLowRank> pack(const LowRankExperts& low, bool gate_up, const std::string& name);
  Status load_adapter(const LayerAdapter& adapter, Layer& layer, const std::string& name);
  Status load_embed(const MatrixView& embed);
  DecodeProbe make_probe();
  ChosenTuning choose_tuning();
  void build_row_maps();
  void norm_rows(const std::vector<float>& weight, int layer, const char* op);
  void rotate_and_append(Layer& layer, bool sliding, int64_t row);
  void attend_row(const Layer& layer, bool sliding, int64_t row, int kv_head);
  void route(int index);
  void add_low_rank(const PackedLowRank& low, const float* x, int64_t stride, int rows, float* y,
                    int64_t y_stride);
  void lower_expert_rows(const PackedLowRank& low, const float* x, int64_t stride, int rows,
                         std::span<const int32_t> slots);
  void add_to_tile(const PackedLowRank& low, int64_t pair, int first, int tokens, int thread);
  RunTuning runs() const;
  void gate_up_gemm(const Layer& layer);
  void down_gemm(const Layer& layer);
  void combine(const Layer& layer);
  void fail(int layer, const char* op);
  void convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride, int rows,
               std::span<const int32_t> slots = {});
  template <typename Epilogue>
  void multiply(const PackedMatrix& m, const float* x, int64_t stride, int rows, Epilogue&& epilogue);

  const Kernels& kernels_;
  BackendOptions options_;
  std::optional<GemmTuning> asked_prefetch_;
  CpuTopology topology_;
  ThreadPlan plan_;
  ThreadPool pool_;
  ModelConfig config_;
  RopeTable rope_;
  std::vector<Layer> layers_;
  MatrixView embed_;
  Buffer embed_data_, embed_scales_;
  std::vector<float> final_norm_;
  PackedMatrix head_;
  std::vector<Workspace> workspaces_;
  std::vector<Workspace> adapter_workspaces_;  // for a second tile beside a product's own
  ChosenTuning chosen_;
  std::vector<ReadPattern> read_patterns_;  // the best, once there was a search
  KvLayout kv_layout_;

  // One step.
  Batch batch_;
  std::vector<int32_t> row_sequence_;                  // [rows]
  std::vector<float> cosine_, sine_;                   // [rows, head_dim / 2]
  std::vector<float> x_, normed_;                      // [rows, hidden]: the residual stream
  std::vector<float> qkv_, attended_;                  // [rows, padded q, k, v], [rows, heads * head_dim]
  std::vector<int8_t> q_;                              // [rows, heads * head_dim]
  std::vector<int32_t> q_bias_;                        // [rows, heads]
  std::vector<float> q_scale_;                         // [rows, heads]
  std::vector<float> router_logits_, expert_weights_;  // [rows, padded experts], [rows, top_k]
  std::vector<int32_t> expert_ids_;                    // [rows, top_k]
  WorkList work_;
  std::vector<float> hidden_, expert_out_;  // [permuted rows, intermediate], [.., hidden]
  std::vector<float> lowered_;              // [rows, rank] of an adapter, or of its permuted rows
  ActRows act_, expert_act_, low_act_;
  Status fault_;
  std::array<OpProfile, kOps> profile_;
  CpuDraftHead draft_head_{{kernels_, pool_, options_, config_, embed_, head_, chosen_, kv_layout_, batch_,
                            [this] { return !layers_.empty() && layers_[0].kv.pages > 0; }}};
};

}  // namespace moesaic::cpu
