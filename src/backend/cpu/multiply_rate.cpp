#include "backend/cpu/multiply_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/seconds.h"

namespace moesaic::cpu {
namespace {

// By all threads at once.
double rate_of(const Kernels& kernels, ThreadPool& pool, int64_t rounds) {
  std::atomic<int64_t> operations{0};
  const auto start = std::chrono::steady_clock::now();
  pool.for_each(pool.threads(), [&](int64_t, int) { operations += kernels.multiply(rounds); });
  return static_cast<double>(operations) / seconds_since(start);
}

}  // namespace

double measure_multiply_rate(const Kernels& kernels, ThreadPool& pool) {
  constexpr double kSeconds = 0.01;  // a try takes longer than a thread needs to wake up
  constexpr int kTries = 8;
  int64_t rounds = 64;
  for (double seconds = 0; seconds < kSeconds; rounds *= 4) {
    const auto start = std::chrono::steady_clock::now();
    kernels.multiply(rounds);
    seconds = 4 * seconds_since(start);
  }
  double best = 0;
  for (int i = 0; i < kTries; ++i) best = std::max(best, rate_of(kernels, pool, rounds));
  return best;
}

}  // namespace moesaic::cpu
