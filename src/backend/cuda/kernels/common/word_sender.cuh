// A float goes to the other ranks' inboxes with its epoch (gather.cu).
//
// Ordering The kernel's successor polls for these words before the kernel ends. It must read this step's
// epoch
//          and no older one. So the kernel calls launch_dependents only behind wait_for_predecessor.
#pragma once

#include "backend/cuda/kernels/common/word_sender.h"
#include "backend/cuda/kernels/ptx/system_scope.cuh"

namespace moesaic::cuda {

__device__ __forceinline__ uint32_t epoch_of(const WordSender& s) {
  return static_cast<uint32_t>(*s.epoch + s.index);
}
// column: counted from this rank's first.
__device__ __forceinline__ void send_word(const WordSender& s, uint32_t epoch, int row, int column,
                                          float value) {
  const uint64_t word = __float_as_uint(value) | static_cast<uint64_t>(epoch) << 32;
  const int slot = inbox_slot(epoch, row * s.width + s.first + column);
#pragma unroll
  for (int i = 0; i < kMostRanks - 1; ++i)
    if (i < s.peers) st_relaxed_system(s.inbox[i] + slot, word);
}

}  // namespace moesaic::cuda
