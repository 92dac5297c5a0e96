// How many ranks compute a model where nobody said a number: OpenOptions::tp is kAutoRanks or kRankPerNode.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/model_parts.h"
#include "backend/rank_gpus.h"
#include "base/cpu_topology.h"
#include "checkpoint/checkpoint.h"

namespace moesaic {

// A model whose number of ranks is to be chosen.
struct RankedModel {
  const ModelConfig& config;
  const ModelWeights& weights;
  std::optional<Format> dense;  // projections and lm_head in memory; nothing: as stored
  double cache_bytes = 0;       // the least KV cache, on all ranks together
  std::string one_only;         // why it has one rank whatever there is; empty: nothing
};

struct RankChoice {
  int ranks = 1;
  std::vector<int> gpus;  // one for each rank; empty: the host
  std::string reason;     // one line: "2 GPUs (cuda:0,1): ..."
};

// Chooses the fewest GPUs that have room, or more where they make a token quicker by projection. gpus: the
// candidates, not empty; the first is always taken.
RankChoice choose_gpus(const RankedModel& model, std::span<const RankGpu> gpus);
// Chooses a rank for each node that has threads.
RankChoice choose_nodes(const RankedModel& model, const ThreadPlan& threads);

// Returns the GPUs of this machine; none where "auto" would give no GPU.
std::vector<RankGpu> usable_gpus();
// Replaces kAutoRanks and kRankPerNode in choice.options.tp by a number, and says why in choice.ranks. What
// cannot work becomes one rank, with the reason. one_only: as above. context: tokens that were asked for, or
// 0. find_gpus: another list in tests. Before anything of the process uses CUDA.
Status settle_ranks(const Checkpoint& checkpoint, int context, const std::string& one_only,
                    DeviceChoice& choice,
                    const std::function<std::vector<RankGpu>()>& find_gpus = usable_gpus);
// Says why a model with this drafter has one rank; empty: nothing does.
std::string one_rank_reason(const std::string& speculative);

}  // namespace moesaic
