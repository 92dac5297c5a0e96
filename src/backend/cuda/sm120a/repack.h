// Experts as they were stored to the weights of layout.h.
#pragma once

#include "backend/cuda/repack.h"

namespace moesaic::cuda::sm120a {

// Two sources (gate and up) stand in the order of Rows::kPairs, one in that of Rows::kPlain (matrix.h).
struct RepackExperts {
  Raw source[2];
  bool pairs = false;
  int64_t experts = 0;
  int units = 0, blocks = 0;  // of an expert; of a row
  uint8_t* data = nullptr;    // [experts][units][unit_bytes(blocks)]
  int* fault = nullptr;       // a RepackFault is left here
};
Status repack(const RepackExperts& params, cudaStream_t stream);

}  // namespace moesaic::cuda::sm120a
