// A row of logits as sample.cu reads it: the CTAs that share it, the part that each has, and how its tokens
// are weighed and ordered.
#pragma once

#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/sample.h"

namespace moesaic::cuda::logit_row {

inline constexpr int kThreads = 1024, kWarps = kThreads / 32;
inline constexpr int kDigit = 10, kBins = 1 << kDigit;  // a thread each
static_assert(kBins == kThreads);
inline constexpr int kIdBits = 18, kKeyBits = 60;
static_assert(kMostSampledVocab == 1 << kIdBits && kKeyBits % kDigit == 0);
inline constexpr double kFar = 32;                      // temperatures below the top
inline constexpr double kReach = kFar * (1 - 0x1p-53);  // the number before
inline constexpr double kAnywhere = 1e39;               // further than two floats can be apart
// A mass is a probability over the likeliest token's, in 2^-33. It is added in two halves, of kHalf bits and
// of up to 17.
inline constexpr float kMassOne = 8589934592.0f;
inline constexpr int kHalf = 17;
inline constexpr uint64_t kNotFinite = ~uint64_t{0};

// The CTAs that share a row. A histogram's bin has a mass in two words.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MOESAIC_SAMPLE_CLUSTER __cluster_dims__(kSampleCluster, 1, 1)
struct Cluster {
  static constexpr int kCtas = kSampleCluster;
  __device__ static int rank() { return static_cast<int>(cooperative_groups::this_cluster().block_rank()); }
  __device__ static void sync() { cooperative_groups::this_cluster().sync(); }
  // The same variable in another CTA's memory.
  template <class T>
  __device__ static T* of(T* mine, int rank) {
    return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
  }
  // The halves apart: a CTA has at most 2^15 tokens of the row, an upper half at most 2^16.
  template <class Histogram>
  __device__ static void add(Histogram& s, int bin, uint32_t low, uint32_t high) {
    atomicAdd(&s.low[bin], low);
    atomicAdd(&s.high[bin], high);
  }
  __device__ static uint64_t mass(uint32_t low, uint32_t high) {
    return (static_cast<uint64_t>(high) << kHalf) + low;
  }
};
#elif defined(__CUDACC__)
#define MOESAIC_SAMPLE_CLUSTER
#endif
struct OneCta {
  static constexpr int kCtas = 1;
  __device__ static int rank() { return 0; }
  __device__ static void sync() { __syncthreads(); }
  template <class T>
  __device__ static T* of(T* mine, int) {
    return mine;
  }
  // 64 bits: whoever makes the lower word overflow carries.
  template <class Histogram>
  __device__ static void add(Histogram& s, int bin, uint32_t low, uint32_t high) {
    const uint64_t mass = (static_cast<uint64_t>(high) << kHalf) + low;
    const auto lower = static_cast<uint32_t>(mass);
    auto upper = static_cast<uint32_t>(mass >> 32);
    if (atomicAdd(&s.low[bin], lower) + lower < lower) ++upper;
    if (upper != 0) atomicAdd(&s.high[bin], upper);
  }
  __device__ static uint64_t mass(uint32_t low, uint32_t high) {
    return static_cast<uint64_t>(high) << 32 | low;
  }
};

// Tokens that may hold what is looked for: by their logits or, in the order of ids, by these. Generous at the
// ends; what is in it is looked at closely.
struct LogitRange {
  float least = -INFINITY, most = INFINITY;
  int first = 0, last = kMostSampledVocab;
  __device__ bool has(float v, int id) const { return v >= least && v <= most && id >= first && id < last; }
};

// By id; by likelihood, as finely as it matters to sampling and as far as kFar; by the logit itself.
enum class Order { kIds, kLikelihood, kLogits };

// The part of a row that a CTA has, and how the row's tokens are weighed and ordered.
struct LogitRow {
  const float* logits;
  int first, last;
  float top = 0;
  double temperature = 1, per_temperature = 1, reach = kReach;
  Order order = Order::kIds;

  // How many temperatures a logit lies below the top; those beyond `reach` do not count.
  __device__ double below(float v) const {
    return (static_cast<double>(top) - static_cast<double>(v)) * per_temperature;
  }
  // The first digit of a token's key.
  __device__ int bin(double x, int id) const {
    if (order == Order::kIds) return id >> (kIdBits - kDigit);
    return x < kFar ? static_cast<int>(x * (kBins / kFar)) : kBins - 1;
  }
  __device__ uint64_t key(float v, double x, int id) const {
    constexpr int kAbove = kKeyBits - kIdBits;
    static_assert(kAbove == kDigit + 32);
    const uint64_t place = order == Order::kIds ? static_cast<uint64_t>(id) << (kAbove - kIdBits)
                           : order == Order::kLikelihood
                               ? static_cast<uint64_t>(x * ((1ull << kAbove) / kFar))
                               : static_cast<uint64_t>(bin(x, id)) << 32 | ~ordered_key(v);
    return place << kIdBits | static_cast<uint64_t>(id);
  }
  __device__ static int32_t id_of(uint64_t key) { return static_cast<int32_t>(key & ((1u << kIdBits) - 1)); }
  // In the order of logits.
  __device__ static float logit_of(uint64_t key) {
    return from_ordered_key(~static_cast<uint32_t>(key >> kIdBits));
  }
  // The tokens with a first digit of `bin`.
  __device__ LogitRange range(int bin) const {
    if (order == Order::kIds)
      return {.first = bin << (kIdBits - kDigit), .last = (bin + 1) << (kIdBits - kDigit)};
    const auto at = [&](double x) { return static_cast<float>(top - x * (kFar / kBins) * temperature); };
    const float slack = 1e-6f * fmaxf(fabsf(top), fabsf(at(bin + 1)));
    return {.least = bin + 1 < kBins ? at(bin + 1) - slack : -INFINITY, .most = at(bin) + slack};
  }
  __device__ static uint64_t mass(double x) {
    return static_cast<uint64_t>(__expf(static_cast<float>(-x)) * kMassOne + 0.5f);
  }
  // Calls body(logit, id) for every token of the CTA, kAhead loads ahead of the arithmetic and all lanes of
  // a warp together: -infinity behind the last. 25 rounds make up 201,088 tokens.
  template <int kAhead, typename Body>
  __device__ void each_logit(Body&& body) const {
    for (int i = first + static_cast<int>(threadIdx.x); i - static_cast<int>(threadIdx.x % 32) < last;
         i += kAhead * kThreads) {
      float v[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) v[j] = i + j * kThreads < last ? logits[i + j * kThreads] : -INFINITY;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) body(v[j], i + j * kThreads);
    }
  }
  // Calls body(logit, x, id) for every token that counts.
  template <typename Body>
  __device__ void each(const LogitRange& range, Body&& body) const {
    each_logit<9>([&](float v, int id) {
      if (!range.has(v, id)) return;
      const double x = below(v);
      if (x <= reach) body(v, x, id);
    });
  }
};

}  // namespace moesaic::cuda::logit_row
