// Activation rows in the format that a packed matrix wants, and the loop that multiplies them panel pair by
// panel pair over the thread pool.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "backend/cpu/pack.h"
#include "backend/cpu/tuning.h"
#include "backend/rounding.h"

namespace moesaic::cpu {

// Owned activation rows of one format, reused from step to step.
class ActRows {
 public:
  // Converts rows x[r * stride], r < rows, of `cols` floats. With Act::kF32 they are rounded first. slots:
  // where row r comes to stand, at most so many places for every row, [rows, places], -1: none; empty: at r.
  void assign(const Kernels& kernels, ThreadPool& pool, Act format, const float* x, int64_t stride, int rows,
              int64_t cols, const Rounding& rounding = {}, std::span<const int32_t> slots = {});
  const ActView& view() const { return view_; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };

  void convert(const Kernels& kernels, const float* x, const Rounding& rounding, int64_t row);
  void copy(int64_t from, int64_t to);

  std::vector<Line> data_;
  std::vector<float> scale_;
  std::vector<int32_t> bias_;
  ActView view_;
};

// The rows from `first` on.
ActView rows_from(const ActView& act, int64_t first);

// Tokens that share one pass over a panel pair: their output tile (64 KB) stays in L2 beside the weights.
inline constexpr int kTokenBlock = 512;

// Per-thread working memory of the kernels.
struct Workspace {
  Buffer scratch;  // expanded panels
  Buffer tile;     // float [kTokenBlock, 32]
};
Result<std::vector<Workspace>> make_workspaces(int threads, int64_t max_cols);

// Runs the first `tokens` activation rows over a pair of panels. The tile that comes back is [tokens, 32].
const float* run_pair(const Kernels& kernels, const PackedMatrix& m, int64_t pair, const ActView& act,
                      int tokens, Workspace& workspace, const GemmTuning& tuning = {});

// Calls body(section, pair, thread) for every panel pair of every section, on the pool. Neighbouring pairs go
// to one thread in runs, and each thread begins with runs that follow each other, so that decode reads memory
// in long streams and a thread's activations stay in its cache; a run is short enough to balance the threads.
// A NUMA node's threads begin with the pairs in its memory (PackedMatrix::node_begins).
template <typename Body>
void for_each_pair(ThreadPool& pool, int64_t sections, int64_t pairs, const RunTuning& tuning, Body&& body) {
  const int64_t run =
      std::clamp<int64_t>(sections * pairs / (tuning.a_thread * pool.threads()), 1, tuning.longest);
  const auto runs_of = [&](int node) {
    return (pool.node_begin(pairs, node + 1) - pool.node_begin(pairs, node) + run - 1) / run;
  };
  std::vector<int64_t> ends = {0};  // where each node's items end, after a zero
  for (int node = 0; node < pool.nodes(); ++node) ends.push_back(ends.back() + sections * runs_of(node));
  const auto run_item = [&](int64_t item, int thread) {
    int node = 0;
    while (item >= ends[node + 1]) ++node;
    const int64_t at = item - ends[node], runs = runs_of(node);
    const int64_t first = pool.node_begin(pairs, node) + at % runs * run,
                  end = std::min(first + run, pool.node_begin(pairs, node + 1));
    for (int64_t pair = first; pair < end; ++pair) body(at / runs, pair, thread);
  };
  pool.for_each_by_node(std::span(ends).subspan(1), run_item);
}

// Tokens that a thread takes at a time. More blocks of them than one where a matrix has fewer pairs than
// threads want, as a router of 32 experts has one; and where the activations of all would not stay in the
// second cache from pair to pair: each pair would bring them from the third one, which many threads share.
// Each block is a pass over the weights, which costs nothing where threads work on all blocks at the same
// time: with few threads there is one. token_bytes: of a token's activations. No fewer than share a pass with
// profit.
inline int tokens_at_a_time(int threads, int64_t pairs, int tokens, int64_t token_bytes) {
  constexpr int kItemsAThread = 4, kFewest = 32;
  constexpr int64_t kBlockBytes = 1 << 20;
  constexpr int kThreadsABlock = 4;
  const int64_t long_rows = std::min<int64_t>((tokens * token_bytes + kBlockBytes - 1) / kBlockBytes,
                                              std::max(1, threads / kThreadsABlock));
  const int64_t blocks = std::max((int64_t{kItemsAThread} * threads + pairs - 1) / pairs, long_rows);
  const int64_t each = (tokens + blocks - 1) / blocks;
  return static_cast<int>(std::max<int64_t>((each + kFewest - 1) / kFewest * kFewest, kFewest));
}

// epilogue(tile, first_token, tokens, panel, count, thread) for every panel pair of the matrix, on the pool;
// count is 1 where the second panel is only padding.
template <typename Epilogue>
void for_each_tile(const Kernels& kernels, ThreadPool& pool, std::vector<Workspace>& workspaces,
                   const PackedMatrix& m, const ActView& act, int tokens, const CpuTuning& tuning,
                   Epilogue&& epilogue) {
  const int step = tokens_at_a_time(pool.threads(), m.pairs(), tokens, act.stride),
            blocks = (tokens + step - 1) / step;
  for_each_pair(
      pool, blocks, m.pairs(), tuning.runs_for(tokens), [&](int64_t block, int64_t pair, int thread) {
        const int count = static_cast<int>(std::min<int64_t>(kPair, m.panels - kPair * pair));
        const int begin = static_cast<int>(block) * step, end = std::min(tokens, begin + step);
        for (int first = begin; first < end; first += kTokenBlock) {
          const int n = std::min(kTokenBlock, end - first);
          const float* tile =
              run_pair(kernels, m, pair, rows_from(act, first), n, workspaces[thread], tuning.dense);
          epilogue(tile, first, n, kPair * pair, count, thread);
        }
      });
}

}  // namespace moesaic::cpu
