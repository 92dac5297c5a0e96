// For tests: what a rank does before and behind an exchange, each after a random delay. Mostly none, often
// some microseconds, now and then 0.3 ms.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace moesaic::cuda {

inline constexpr int kLateWidth = 2880;  // values of a row

// On the device.
struct LateControl {
  int32_t epoch;  // the epoch of the step's first exchange
  uint32_t step;
  int of_a_step;     // exchanges
  int fault, wrong;  // wrong: values
};
void begin_late(LateControl* c, int32_t epoch, uint32_t step, int of_a_step, cudaStream_t stream);
// Writes the columns [first, first + count) of x [rows, kLateWidth], other values for each exchange: the
// index-th one of the step.
void make_late(const LateControl* c, int index, int rank, float* x, int rows, int first, int count,
               cudaStream_t stream);
// Counts what differs from all ranks' values.
void compare_late(LateControl* c, int index, int rank, const float* x, int rows, cudaStream_t stream);

}  // namespace moesaic::cuda
