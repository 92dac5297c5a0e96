// The GPUs of this machine, as far as they may compute one model together.
#pragma once

#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

struct RankGpu {
  int index = 0;                // N in cuda:N
  std::string kind;             // ranks are of one kind: "NVIDIA H100 80GB HBM3 (9.0, 132 multiprocessors)"
  std::string one_only;         // why the first one computes a model by itself; empty: it need not
  double memory = 0;            // bytes in all: what is free is known only once a model is opened on it
  double bytes_per_second = 0;  // the memory's, by its data sheet; 0: the driver does not say
  std::vector<int> reaches;     // the GPUs whose memory it can map
};

// Returns the GPUs that this program can use, by index. Nothing else of the process may have used CUDA before
// (CUDA_MODULE_LOADING), if several of them are to compute a model.
std::vector<RankGpu> rank_gpus();

// The numbers behind the colon of a device "cuda:0,1"; none where it has no colon.
Result<std::vector<int>> device_indices(const std::string& device);

}  // namespace moesaic
