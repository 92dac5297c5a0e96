#include "backend/cuda/ops/late_ranks.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256, kCtas = 16;

__global__ void begin_kernel(LateControl* c, int32_t epoch, uint32_t step, int of_a_step) {
  c->epoch = epoch, c->step = step, c->of_a_step = of_a_step;
}

__device__ uint32_t exchange_of(const LateControl* c, int index) { return c->step * c->of_a_step + index; }

__device__ float value_of(uint32_t exchange, int row, int column) {
  return static_cast<float>((exchange * 7919 + row * 613 + column) % 1000003);
}

// As late_ranks.h says. The next kernel waits for it.
__device__ void be_late(uint32_t exchange, int rank, uint32_t place) {
  uint32_t hash = (exchange * 2 + place) * 8 + rank;
  hash = (hash ^ hash >> 16) * 0x7feb352d;
  hash = (hash ^ hash >> 15) * 0x846ca68b;
  const uint32_t choice = (hash ^ hash >> 16) % 1024;
  const int64_t cycles = choice == 0 ? 500'000 : choice < 128 ? hash % 8192 : 0;
  for (const int64_t began = clock64(); clock64() - began < cycles;) __nanosleep(100);
}

__global__ void make_kernel(const LateControl* c, int index, int rank, float* x, int rows, int first,
                            int count) {
  const uint32_t exchange = exchange_of(c, index);
  if (blockIdx.x == 0 && threadIdx.x == 0) be_late(exchange, rank, 0);
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < rows * count; i += kCtas * kThreads) {
    const int row = i / count, column = first + i % count;
    x[row * kLateWidth + column] = value_of(exchange, row, column);
  }
}

__global__ void compare_kernel(LateControl* c, int index, int rank, const float* x, int rows) {
  const uint32_t exchange = exchange_of(c, index);
  int wrong = 0;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < rows * kLateWidth; i += kCtas * kThreads)
    wrong += x[i] != value_of(exchange, i / kLateWidth, i % kLateWidth);
  if (wrong > 0) atomicAdd(&c->wrong, wrong);
  if (blockIdx.x == 0 && threadIdx.x == 0) be_late(exchange, rank, 1);
}

}  // namespace

void begin_late(LateControl* c, int32_t epoch, uint32_t step, int of_a_step, cudaStream_t stream) {
  begin_kernel<<<1, 1, 0, stream>>>(c, epoch, step, of_a_step);
}

void make_late(const LateControl* c, int index, int rank, float* x, int rows, int first, int count,
               cudaStream_t stream) {
  make_kernel<<<kCtas, kThreads, 0, stream>>>(c, index, rank, x, rows, first, count);
}

void compare_late(LateControl* c, int index, int rank, const float* x, int rows, cudaStream_t stream) {
  compare_kernel<<<kCtas, kThreads, 0, stream>>>(c, index, rank, x, rows);
}

}  // namespace moesaic::cuda
