// Exchanges between ranks, each on a device of its own (docs/design/parallel.md): each has made some columns
// of a matrix, and all get the whole. Words are of 32 bits: a float, or two 16-bit values.
//
// All ranks launch the same exchanges in the same order, with the same sizes.
#pragma once

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/common/word_sender.h"
#include "backend/cuda/layout/of_ranks.h"
#include "backend/cuda/runtime/device.h"
#include "core/rank_share.h"

namespace moesaic::cuda {

inline constexpr int kGatherCtas = 132;  // most of one exchange

// Shared by all exchanges of a step.
struct RankLinks {
  int rank = 0, ranks = 1;
  OfRanks<uint64_t> inbox;    // [kInboxQuarters][kInboxWords]
  OfRanks<uint32_t> arrived;  // [ranks][kGatherCtas]: the last exchange for which this CTA's part is there
  const int32_t* epoch = nullptr;  // counts the exchanges; here the step's first one. None is 0
  int* fault = nullptr;            // becomes kRankAway (gave_up.h)
};

// Rank r has the words [first[r], first[r + 1]) of each row.
struct RankColumns {
  int first[kMostRanks + 1] = {};
};

struct Gather {
  int index = 0;                   // number of the exchange in its step
  const uint32_t* part = nullptr;  // this rank's words; they may stand in its whole matrix
  int64_t part_stride = 0;
  OfRanks<uint32_t> whole;  // [rows, width]
  int width = 0, rows = 0;
  RankColumns columns;
  // Is added to this rank's words before they go out. They must be floats that stand in its whole matrix,
  // whose width is that of expert_out.
  DeferredResidual deferred = {};
};
Status gather(const RankLinks& links, const Gather& p, cudaStream_t stream);

// The second half of an exchange of floats whose first half a kernel has done that made them, by a WordSender
// (word_sender.cuh): the others' words come to this rank's x. It may begin before that kernel has ended.
struct Receive {
  int index = 0;
  float* x = nullptr;  // [rows, width]
  int width = 0, rows = 0;
  RankColumns columns;
};
Status receive(const RankLinks& links, const Receive& p, cudaStream_t stream);

// The second half of an exchange whose kernel has stored this rank's part into all ranks' matrices: waits
// until the others' kernels have, too.
Status await_stores(const RankLinks& links, int index, cudaStream_t stream);

}  // namespace moesaic::cuda
