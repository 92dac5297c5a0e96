// A layer's experts, or its dense MLP: the weights, and the operation. The cpu backend's layers run through
// it, and the experts that another backend leaves to the host (backend/host_experts.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/expert_pages.h"
#include "backend/cpu/products.h"
#include "core/model_config.h"
#include "core/rank_share.h"
#include "moe/work_list.h"

namespace moesaic::cpu {

struct ExpertLayer {
  LayerShape shape;
  PackedMatrix gate_up, down;  // experts one after the other; gate and up panels alternate
  // The experts that come from the file; null: all are in memory.
  std::unique_ptr<ExpertPages> gate_up_pages, down_pages;
  std::vector<float> gate_bias, up_bias, down_bias;  // [experts, padded]; up's has swiglu_offset - 1 in it
  PackedLowRank gate_up_adapter, down_adapter;

  // Experts that memory holds.
  int64_t places() const { return gate_up.sections; }
  double experts_bytes() const {
    return gate_up.bytes() + gate_up_adapter.bytes() + down.bytes() + down_adapter.bytes();
  }
};

// Reads from the file of layers that do not hold all of their experts.
struct FileReads {
  double bytes = 0, seconds = 0;  // so far
  double token_bytes = 0;         // a token's reads, where every expert is chosen as often as the others
  void add(const ExpertLayer& layer);
  // The speed, and what decoding can reach with it; empty: all experts are in memory.
  std::string words() const;
};

// The rows' choices of experts.
struct ExpertChoice {
  std::span<const int32_t> ids;    // [rows, top_k], each below `experts`; negative: nothing is added for it
  const float* weights = nullptr;  // [rows, top_k]
};

class ExpertOps {
 public:
  // rank: a layer's shape and weights are those of this one. products outlives this.
  ExpertOps(Products& products, RankPlace rank) : p_(products), rank_(std::move(rank)) {}

  // x += the experts' output of the normed rows [rows, hidden]. next: the matrix that is read after these, or
  // null. Fails only where experts are read from a file.
  Status run(const ExpertLayer& layer, int rows, const float* normed, const ExpertChoice& choice, float* x,
             const PackedMatrix* next = nullptr);
  // x += the dense MLP's.
  void run_dense(const ExpertLayer& layer, int rows, const float* normed, float* x);
  int64_t active_experts() const { return std::ssize(work_.active); }  // in the last run

 private:
  void take_all(int rows);
  RunTuning runs() const;
  // body(expert, at, pair, thread) for each pair of each active expert; at: where in m that is.
  template <typename Body>
  void for_each_expert(const PackedMatrix& m, ExpertPages* pages, int64_t pairs, const Body& body);
  void gate_up_gemm(const ExpertLayer& layer, int rows, const float* normed);
  void down_gemm(const ExpertLayer& layer);
  void combine(const ExpertLayer& layer, int rows, const ExpertChoice& choice, float* x);
  // adapter.cpp
  void lower_rows(const PackedLowRank& low, const float* x, int64_t stride, int rows,
                  std::span<const int32_t> slots);
  void add_to_tile(const PackedLowRank& low, int64_t pair, int first, int tokens, int thread);

  Products& p_;
  RankPlace rank_;
  WorkList work_;
  std::vector<float> hidden_, out_;  // [permuted rows, layer.down.cols], [.., rows of down]
  ActRows act_, hidden_act_;
  Status read_;  // the error of the layer's reads from a file
};

}  // namespace moesaic::cpu
