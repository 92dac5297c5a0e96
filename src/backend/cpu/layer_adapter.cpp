// The products of LoRA adapters, in F32 beside the weights' own.
#include <algorithm>

#include "backend/cpu/layer_ops.h"

namespace moesaic::cpu {

// y += up (down x), of dense matrices.
void LayerOps::add_low_rank(const PackedLowRank& low, const float* x, int64_t stride, int rows, float* y,
                            int64_t y_stride) {
  if (low.rank == 0) return;
  const auto each = [&](const PackedMatrix& m, const ActRows& act, auto&& put) {
    for_each_tile(kernels_, pool_, workspaces_, m, act.view(), rows, chosen_.tuning,
                  [&](const float* tile, int first, int n, int64_t panel, int count) {
                    for (int t = 0; t < n; ++t) {
                      for (int i = 0; i < count * kPanel; ++i)
                        put(first + t, panel * kPanel + i, tile[t * kPair * kPanel + i]);
                    }
                  });
  };
  lowered_.resize(rows * low.rank);
  low_act_.assign(kernels_, pool_, Act::kF32, x, stride, rows, low.down.cols);
  each(low.down, low_act_, [&](int64_t row, int64_t i, float v) { lowered_[row * low.rank + i] = v; });
  low_act_.assign(kernels_, pool_, Act::kF32, lowered_.data(), low.rank, rows, low.rank);
  each(low.up, low_act_, [&](int64_t row, int64_t i, float v) { y[row * y_stride + i] += v; });
}

// low_act_ becomes down x of each permuted row, by its expert. slots: where row r of x comes to stand, as
// ActRows::assign() has it; empty: x is permuted already.
void LayerOps::lower_expert_rows(const PackedLowRank& low, const float* x, int64_t stride, int rows,
                                 std::span<const int32_t> slots) {
  if (low.rank == 0) return;
  const int permuted = static_cast<int>(std::ssize(work_.rows));
  lowered_.resize(permuted * low.rank);
  low_act_.assign(kernels_, pool_, Act::kF32, x, stride, rows, low.down.cols, {}, slots);
  const int64_t pairs = low.rank / (kPair * kPanel);  // whole: the rank is a multiple of 32
  for_each_pair(
      pool_, std::ssize(work_.active), pairs, runs(), [&](int64_t section, int64_t pair, int thread) {
        const int expert = work_.active[section];
        for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
          const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
          const float* tile = run_pair(kernels_, low.down, expert * pairs + pair,
                                       rows_from(low_act_.view(), first), n, workspaces_[thread]);
          for (int t = 0; t < n; ++t)
            std::copy_n(tile + t * kPair * kPanel, kPair * kPanel,
                        lowered_.data() + (first + t) * low.rank + pair * kPair * kPanel);
        }
      });
  low_act_.assign(kernels_, pool_, Act::kF32, lowered_.data(), low.rank, permuted, low.rank);
}

// Adds `up` times the lowered rows [first, first + tokens) to the tile of the same pair that the thread has
// just computed.
void LayerOps::add_to_tile(const PackedLowRank& low, int64_t pair, int first, int tokens, int thread) {
  if (low.rank == 0) return;
  const float* more = run_pair(kernels_, low.up, pair, rows_from(low_act_.view(), first), tokens,
                               adapter_workspaces_[thread]);
  float* tile = workspaces_[thread].tile.as<float>();
  for (int i = 0; i < tokens * kPair * kPanel; ++i) tile[i] += more[i];
}

}  // namespace moesaic::cpu
