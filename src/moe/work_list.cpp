#include "moe/work_list.h"

#include <cmath>
#include <numeric>

namespace moesaic {

void build_work_list(std::span<const int32_t> expert_ids, int top_k, int experts, WorkList& out) {
  out.offsets.assign(experts + 1, 0);
  for (const int32_t e : expert_ids) {
    if (e >= 0) ++out.offsets[e + 1];
  }
  std::partial_sum(out.offsets.begin(), out.offsets.end(), out.offsets.begin());
  out.rows.resize(out.offsets.back());
  out.choices.resize(out.offsets.back());
  out.permuted_rows.resize(expert_ids.size());
  std::vector<int32_t> next(out.offsets.begin(), out.offsets.end() - 1);
  for (size_t i = 0; i < expert_ids.size(); ++i) {
    if (expert_ids[i] < 0) {
      out.permuted_rows[i] = -1;
      continue;
    }
    const int32_t slot = next[expert_ids[i]]++;
    out.rows[slot] = static_cast<int32_t>(i) / top_k;
    out.choices[slot] = static_cast<int32_t>(i) % top_k;
    out.permuted_rows[i] = slot;
  }
  out.active.clear();
  for (int e = 0; e < experts; ++e) {
    if (out.offsets[e] < out.offsets[e + 1]) out.active.push_back(e);
  }
}

void route_row(std::span<const float> logits, int top_k, int32_t* ids, float* weights) {
  // Insertion into k slots: k is 4 and one pass over the logits is all there is to do.
  for (int k = 0; k < top_k; ++k) ids[k] = -1;
  for (int32_t e = 0; e < std::ssize(logits); ++e) {
    int k = top_k;
    while (k > 0 && (ids[k - 1] < 0 || logits[e] > logits[ids[k - 1]])) {
      if (k < top_k) ids[k] = ids[k - 1];
      --k;
    }
    if (k < top_k) ids[k] = e;
  }
  float sum = 0;
  for (int k = 0; k < top_k; ++k) sum += weights[k] = std::exp(logits[ids[k]] - logits[ids[0]]);
  for (int k = 0; k < top_k; ++k) weights[k] /= sum;
}

}  // namespace moesaic
