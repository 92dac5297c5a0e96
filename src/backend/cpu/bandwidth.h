// The machine's read bandwidth, measured: the ceiling beside every figure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/thread_pool.h"

namespace moesaic::cpu {

// A way of reading memory with plain loads.
struct ReadPattern {
  GemmTuning ahead;
  int streams = 1;          // parts of a chunk that a thread reads side by side: 1, 2 or 4
  int64_t chunk = 1 << 20;  // bytes that a thread takes at a time
};

// The memory that is measured: some on each node of the pool.
using MemoryByNode = std::vector<std::vector<std::span<const std::byte>>>;

// GB/s at which the pool reads the memory, by the quickest pattern: every hint and distance that the kernels
// may use, streams and lengths. 0 for less than 4 KB on a node. The first call, with no patterns, tries all,
// some 0.2 s, and leaves the few best ones for later calls.
double measure_read_bandwidth(const MemoryByNode& memory, ThreadPool& pool,
                              std::vector<ReadPattern>& patterns);

}  // namespace moesaic::cpu
