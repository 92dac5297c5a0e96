// The machine's read bandwidth, measured: the ceiling beside every figure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace moesaic::cpu {

// GB/s at which the pool reads the memory, the best of a few passes; 0 for less than 4 KB.
double measure_read_bandwidth(const std::vector<std::span<const std::byte>>& memory, ThreadPool& pool);

}  // namespace moesaic::cpu
