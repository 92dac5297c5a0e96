// The ops of a layer: its weights, its cache and the rows are arguments. The model's layers and the draft
// head's run through the same. Activations between the ops belong to a LayerOps: qkv(), attend() and
// project() of a layer follow each other.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/kv_cache.h"
#include "backend/layer_rows.h"
#include "moe/work_list.h"

namespace moesaic::cpu {

// A LoRA adapter's products, F32: y += up (down x). Of experts: one after the other, as theirs are.
struct PackedLowRank {
  PackedMatrix down, up;
  int64_t rank = 0;  // 0: there is none
  double bytes() const { return rank == 0 ? 0 : down.bytes() + up.bytes(); }
};

struct Layer {
  LayerShape shape;
  std::vector<float> attn_norm, mlp_norm, sinks, router_bias;
  std::vector<float> qkv_bias, o_bias;  // empty: it has none
  PackedMatrix qkv, o, router;
  PackedMatrix gate_up, down;  // experts one after the other; gate and up panels alternate
  std::vector<float> gate_bias, up_bias, down_bias;  // [experts, padded]; up's has swiglu_offset - 1 in it
  PackedLowRank qkv_adapter, o_adapter, gate_up_adapter, down_adapter;
  KvCache kv;

  int64_t qkv_width() const { return padded(shape.q_size()) + 2 * padded(shape.kv_size()); }
};

// The place of a product: y[r, i] = m x + bias, or += that, for the first `width` outputs.
struct Store {
  float* out = nullptr;
  int64_t stride = 0, width = 0;
  const float* bias = nullptr;  // [width], or there is none
  bool add = false;
};

class LayerOps {
 public:
  using RouterSeen = std::function<void(int row, std::span<const float> logits)>;

  // moe_path: by whose rule activations are rounded (backend/rounding.h). rank: a layer's shape and weights
  // are those of this one.
  LayerOps(const Kernels& kernels, ThreadPool& pool, const ChosenTuning& chosen, MoePath moe_path,
           RankPlace rank = {})
      : kernels_(kernels), pool_(pool), chosen_(chosen), moe_path_(moe_path), rank_(std::move(rank)) {}

  // Working memory for products of at most so many columns.
  Status make_room(int64_t columns, bool adapters);
  std::vector<Workspace>& workspaces() { return workspaces_; }

  // RoPE of the rows that qkv() takes from now on.
  void turn(const RopeTable& rope, int head_dim, std::span<const LayerRow> rows);

  // x: [rows, m.cols]
  void linear(const PackedMatrix& m, const float* x, int rows, const Store& to);
  // normed: [rows, layer.qkv.cols]. K and V of every row go to the layer's cache.
  void qkv(Layer& layer, std::span<const LayerRow> rows, const float* normed);
  void attend(const Layer& layer, std::span<const LayerRow> rows);
  // x += the output projection of the rows that were attended to.
  void project(const Layer& layer, int rows, float* x);
  // x += the experts' output, or the dense MLP's, of the normed rows. seen, if any, is shown each row's
  // router logits.
  void mlp(const Layer& layer, int rows, const float* normed, float* x, const RouterSeen& seen = nullptr);
  int64_t active_experts() const { return std::ssize(work_.active); }  // of the last mlp()

 private:
  void rotate_and_append(Layer& layer, const LayerRow& row, int64_t index);
  void attend_row(const Layer& layer, const LayerRow& row, int kv_head, float* out);
  void route(const Layer& layer, int rows, const float* normed, const RouterSeen& seen);
  void take_all(int rows);
  RunTuning runs() const;
  void gate_up_gemm(const Layer& layer);
  void down_gemm(const Layer& layer);
  void combine(const Layer& layer, int rows, float* x);
  void convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride, int rows,
               std::span<const int32_t> slots = {});
  // layer_adapter.cpp
  void add_low_rank(const PackedLowRank& low, const float* x, int64_t stride, int rows, float* y,
                    int64_t y_stride);
  void lower_expert_rows(const PackedLowRank& low, const float* x, int64_t stride, int rows,
                         std::span<const int32_t> slots);
  void add_to_tile(const PackedLowRank& low, int64_t pair, int first, int tokens, int thread);

  const Kernels& kernels_;
  ThreadPool& pool_;
  const ChosenTuning& chosen_;
  MoePath moe_path_;
  RankPlace rank_;
  std::vector<Workspace> workspaces_;
  std::vector<Workspace> adapter_workspaces_;  // for a second tile beside a product's own

  std::vector<float> cosine_, sine_;                   // [rows, head_dim / 2]
  std::vector<float> qkv_, attended_;                  // [rows, padded q, k, v], [rows, layer.o.cols]
  std::vector<int8_t> q_;                              // [rows, heads * head_dim]
  std::vector<int32_t> q_bias_;                        // [rows, heads]
  std::vector<float> q_scale_;                         // [rows, heads]
  std::vector<float> router_logits_, expert_weights_;  // [rows, padded experts], [rows, top_k]
  std::vector<int32_t> expert_ids_;                    // [rows, top_k]
  WorkList work_;
  std::vector<float> hidden_, expert_out_;  // [permuted rows, layer.down.cols], [.., rows of down]
  std::vector<float> lowered_;              // [rows, rank] of an adapter, or of its permuted rows
  ActRows act_, expert_act_, low_act_;
};

}  // namespace moesaic::cpu
