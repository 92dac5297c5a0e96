// Host arithmetic of the MoE operator: which rows go to which expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

// Rows permuted into groups by expert. Permuted row s of expert e (offsets[e] <= s < offsets[e + 1]) is
// (rows[s], choices[s]): a row, and which of its top-k choices. Within an expert the order of rows is kept.
// Experts without rows have an empty range and cost nothing.
struct WorkList {
  std::vector<int32_t> offsets;  // [experts + 1]
  std::vector<int32_t> rows;     // [permuted rows]
  std::vector<int32_t> choices;  // [permuted rows]
  std::vector<int32_t>
      permuted_rows;  // [tokens, top_k]: the permuted row of each (row, choice), for the combine, or -1
  std::vector<int32_t> active;  // experts with rows, ascending
};

// expert_ids: [tokens, top_k], each below `experts`; a negative one has no permuted row.
void build_work_list(std::span<const int32_t> expert_ids, int top_k, int experts, WorkList& out);

// Top-k of the logits (ties: the lower index first, as torch.topk on CPU orders equal values by its own rule
// and no caller may lean on it) and the softmax over those k values only. ids, weights: [top_k].
void route_row(std::span<const float> logits, int top_k, int32_t* ids, float* weights);

}  // namespace moesaic
