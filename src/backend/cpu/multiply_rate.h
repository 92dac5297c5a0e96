// The machine's rate of products, measured: the ceiling beside the figures of prompts.
#pragma once

#include "backend/cpu/kernels.h"
#include "base/thread_pool.h"

namespace moesaic::cpu {

// Operations a second that all threads of the pool do by Kernels::multiply, the most of a few tries: some 0.1
// s.
double measure_multiply_rate(const Kernels& kernels, ThreadPool& pool);

}  // namespace moesaic::cpu
