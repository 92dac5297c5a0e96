// The products of LoRA adapters, in F32 beside the weights' own.
#include <algorithm>

#include "backend/cpu/experts.h"

namespace moesaic::cpu {

// y += up (down x), of dense matrices.
void Products::add_low_rank(const PackedLowRank& low, const float* x, int64_t stride, int rows, float* y,
                            int64_t y_stride) {
  if (low.rank == 0) return;
  const auto each = [&](const PackedMatrix& m, const ActRows& act, auto&& put) {
    for_each_tile(kernels, pool, workspaces, m, act.view(), rows, chosen.tuning,
                  [&](const float* tile, int first, int n, int64_t panel, int count, int) {
                    for (int t = 0; t < n; ++t) {
                      for (int i = 0; i < count * kPanel; ++i)
                        put(first + t, panel * kPanel + i, tile[t * kPair * kPanel + i]);
                    }
                  });
  };
  lowered.resize(rows * low.rank);
  low_act.assign(kernels, pool, Act::kF32, x, stride, rows, low.down.cols);
  each(low.down, low_act, [&](int64_t row, int64_t i, float v) { lowered[row * low.rank + i] = v; });
  low_act.assign(kernels, pool, Act::kF32, lowered.data(), low.rank, rows, low.rank);
  each(low.up, low_act, [&](int64_t row, int64_t i, float v) { y[row * y_stride + i] += v; });
}

// p_.low_act becomes down x of each permuted row, by its expert. slots: where row r of x comes to stand, as
// ActRows::assign() has it; empty: x is permuted already.
void ExpertOps::lower_rows(const PackedLowRank& low, const float* x, int64_t stride, int rows,
                           std::span<const int32_t> slots) {
  if (low.rank == 0) return;
  const int permuted = static_cast<int>(std::ssize(work_.rows));
  p_.lowered.resize(permuted * low.rank);
  p_.low_act.assign(p_.kernels, p_.pool, Act::kF32, x, stride, rows, low.down.cols, {}, slots);
  const int64_t pairs = low.rank / (kPair * kPanel);  // whole: the rank is a multiple of 32
  for_each_pair(
      p_.pool, std::ssize(work_.active), pairs, runs(), [&](int64_t section, int64_t pair, int thread) {
        const int expert = work_.active[section];
        for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
          const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
          const float* tile = run_pair(p_.kernels, low.down, expert * pairs + pair,
                                       rows_from(p_.low_act.view(), first), n, p_.workspaces[thread]);
          for (int t = 0; t < n; ++t)
            std::copy_n(tile + t * kPair * kPanel, kPair * kPanel,
                        p_.lowered.data() + (first + t) * low.rank + pair * kPair * kPanel);
        }
      });
  p_.low_act.assign(p_.kernels, p_.pool, Act::kF32, p_.lowered.data(), low.rank, permuted, low.rank);
}

// Adds `up` times the lowered rows [first, first + tokens) to the tile of the same pair that the thread has
// just computed.
void ExpertOps::add_to_tile(const PackedLowRank& low, int64_t pair, int first, int tokens, int thread) {
  if (low.rank == 0) return;
  const float* more = run_pair(p_.kernels, low.up, pair, rows_from(p_.low_act.view(), first), tokens,
                               p_.adapter_workspaces[thread]);
  float* tile = p_.workspaces[thread].tile.as<float>();
  for (int i = 0; i < tokens * kPair * kPanel; ++i) tile[i] += more[i];
}

}  // namespace moesaic::cpu
