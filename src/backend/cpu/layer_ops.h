// The ops of a layer: its weights, its cache and the rows are arguments. The model's layers and the draft
// head's run through the same. Activations between the ops belong to a LayerOps: qkv(), attend() and
// project() of a layer follow each other.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/cpu/experts.h"
#include "backend/cpu/kv_cache.h"
#include "backend/layer_rows.h"

namespace moesaic::cpu {

struct Layer : ExpertLayer {
  std::vector<float> attn_norm, mlp_norm, sinks, router_bias;
  std::vector<float> qkv_bias, o_bias;  // empty: it has none
  PackedMatrix qkv, o, router;
  PackedLowRank qkv_adapter, o_adapter;
  KvCache kv;

  int64_t qkv_width() const { return padded(shape.q_size()) + 2 * padded(shape.kv_size()); }
};

class LayerOps {
 public:
  using RouterSeen = std::function<void(int row, std::span<const float> logits)>;

  // moe_path: by whose rule activations are rounded (backend/rounding.h). rank: a layer's shape and weights
  // are those of this one.
  LayerOps(const Kernels& kernels, ThreadPool& pool, const ChosenTuning& chosen, MoePath moe_path,
           RankPlace rank = {})
      : kernels_(kernels),
        pool_(pool),
        rank_(std::move(rank)),
        products_(kernels, pool, chosen, moe_path),
        experts_(products_, rank_) {}

  // Working memory for products of at most so many columns.
  Status make_room(int64_t columns, bool adapters) { return products_.make_room(columns, adapters); }
  std::vector<Workspace>& workspaces() { return products_.workspaces; }

  // RoPE of the rows that qkv() takes from now on.
  void turn(const RopeTable& rope, int head_dim, std::span<const LayerRow> rows);

  // x: [rows, m.cols]
  void linear(const PackedMatrix& m, const float* x, int rows, const Store& to) {
    products_.linear(m, x, rows, to);
  }
  // normed: [rows, layer.qkv.cols]. K and V of every row go to the layer's cache. False: a query, key or
  // value is NaN or infinite, which integers could not say; 0 stands for its row.
  [[nodiscard]] bool qkv(Layer& layer, std::span<const LayerRow> rows, const float* normed);
  void attend(const Layer& layer, std::span<const LayerRow> rows);
  // x += the output projection of the rows that were attended to.
  void project(const Layer& layer, int rows, float* x);
  // x += the experts' output, or the dense MLP's, of the normed rows. seen, if any, is shown each row's
  // router logits. next: the matrix that is read after these, or null. Fails only where experts are read
  // from a file.
  Status mlp(const Layer& layer, int rows, const float* normed, float* x, const RouterSeen& seen = nullptr,
             const PackedMatrix* next = nullptr);
  int64_t active_experts() const { return experts_.active_experts(); }  // in the last mlp()

 private:
  bool rotate(const Layer& layer, int64_t index);
  void append(Layer& layer, const LayerRow& row, int64_t index, int kv_head);
  void attend_row(const Layer& layer, const LayerRow& row, int kv_head, float* out);
  void route(const Layer& layer, int rows, const float* normed, const RouterSeen& seen);

  const Kernels& kernels_;
  ThreadPool& pool_;
  RankPlace rank_;
  Products products_;
  ExpertOps experts_;

  std::vector<float> cosine_, sine_;                   // [rows, head_dim / 2]
  std::vector<float> qkv_, attended_;                  // [rows, padded q, k, v], [rows, layer.o.cols]
  std::vector<int8_t> q_;                              // [rows, heads * head_dim]
  std::vector<int32_t> q_bias_;                        // [rows, heads]
  std::vector<float> q_scale_;                         // [rows, heads]
  std::vector<float> router_logits_, expert_weights_;  // [rows, padded experts], [rows, top_k]
  std::vector<int32_t> expert_ids_;                    // [rows, top_k]
};

}  // namespace moesaic::cpu
