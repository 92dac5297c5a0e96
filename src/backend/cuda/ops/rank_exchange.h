// A GPU's place among those that compute a model together (docs/design/parallel.md), and its exchanges.
#pragma once

#include <algorithm>

#include "backend/cuda/kernels/common/gather.h"
#include "backend/cuda/runtime/gpu_part.h"
#include "backend/exchange.h"
#include "base/error.h"

namespace moesaic::cuda {

// Most layers of a model that has ranks: each layer has up to four exchanges, and a step 1,024 epochs.
inline constexpr int kMostRankLayers = 250;

// A rank's last step, for which the steps of other models on the same device wait.
class LastStep {
 public:
  ~LastStep();
  // model: differs between models. The current device is `device`.
  Status open(int device, const void* model);
  // The stream waits for the last steps of other models on this device.
  Status wait_for_others(cudaStream_t stream) const;
  Status ends(cudaStream_t stream) const;

 private:
  const void* model_ = nullptr;
  int device_ = 0;
  cudaEvent_t ended_ = nullptr;
};

class RankExchange {
 public:
  bool alone() const { return place_.alone(); }
  const RankShare& share() const { return place_.share; }

  // Every rank calls it while it loads a model, on its own device: each device maps the others' memory.
  // part: multiprocessors for the rank's kernels. fault: where kernels leave kRankAway. An error where a
  // device cannot reach another.
  Status open(const RankPlace& place, int device, const GpuPart& part, int* fault);
  // Returns what each rank gives as `mine`, memory of its device. All ranks call it at the same place.
  template <typename T>
  Result<OfRanks<T>> of_ranks(T* mine) {
    OfRanks<T> all;
    if (alone()) {
      all.at[0] = mine;
      return all;
    }
    ASSIGN_OR_RETURN(const std::vector<uint64_t> words, words_of_ranks(reinterpret_cast<uintptr_t>(mine)));
    std::ranges::transform(words, all.at, [](uint64_t word) { return reinterpret_cast<T*>(word); });
    return all;
  }
  // All ranks call it; it returns when all have.
  Status meet() { return alone() ? Status() : words_of_ranks(0).status(); }

  // Call it before a step's inputs are sent. Returns the epoch of the step's first exchange, which the inputs
  // must bring to `epoch` on the device. Kernels that wait for other GPUs must not share theirs with another
  // model's: the step begins when the last steps of other models' ranks have ended on the device.
  Result<int32_t> begin_step(const int32_t* epoch, cudaStream_t stream);
  // The step's exchanges are given once more, from the first one on: other ranks may replay theirs.
  void ops_again() { index_ = 0; }
  Status end_step(cudaStream_t stream);

  // Columns of floats, or of pairs of 16-bit values: this rank's part goes to all, theirs come. `part` may
  // stand in its own matrix.
  template <typename RangeOf>
  RankColumns columns(int words_per_unit, const RangeOf& range_of) const {
    RankColumns columns;
    for (int rank = 0; rank < share().ranks; ++rank) {
      const Range range = range_of(RankShare{rank, share().ranks});
      columns.first[rank] = static_cast<int>(range.first) * words_per_unit;
      columns.first[rank + 1] = static_cast<int>(range.first + range.count) * words_per_unit;
    }
    return columns;
  }
  Status gather(Gather p, cudaStream_t stream);
  // The last kernel has stored this rank's part into the others' matrices: waits for theirs.
  Status await_stores(cudaStream_t stream);
  // The halves of an exchange of floats [rows, width], of which each rank has RankShare::rows(): for the
  // kernel that makes them, and behind it. At most kInboxWords.
  WordSender sender(int width);
  Status receive(float* x, int rows, int width, cudaStream_t stream);
  // x: [rows, width] floats of all ranks, of which each has RankShare::rows().
  Status gather_floats(const OfRanks<float>& x, int rows, int width, const DeferredResidual& deferred,
                       cudaStream_t stream);

 private:
  Result<std::vector<uint64_t>> words_of_ranks(uint64_t mine);
  Status map_peers(int device, int multiprocessors);

  RankPlace place_;
  LastStep last_;
  DeviceBuffer inbox_, arrived_;
  RankLinks links_;
  uint32_t steps_ = 0;  // since the epochs began
  int index_ = 0;       // exchanges of this step so far
};

}  // namespace moesaic::cuda
