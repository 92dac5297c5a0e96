// Features of a device, as far as the code that this program has for it uses them. Kernels name the features
// that they need (ops/select.h), never a version.
#pragma once

#include <cstddef>
#include <string>

#include "moesaic/status.h"

namespace moesaic::cuda {

enum Feature : unsigned {
  kBulkCopies = 1 << 0,          // cp.async.bulk and the barriers that it completes on
  kClusters = 1 << 1,            // thread block clusters of 8 CTAs
  kProgrammaticLaunch = 1 << 2,  // a kernel may start before its predecessor has ended
  kWgmma = 1 << 3,               // wgmma
  kBlockScaledMma = 1 << 4,      // kernels/ptx/block_scaled_mma.cuh without emulation
  kFp8Mma = 1 << 5,              // mma.sync of E4M3 and E5M2; on 9.0 the compiler widens both to F16
  kLargeClusters = 1 << 6,       // clusters of 16 CTAs
  kLargeShared = 1 << 7,         // 227 KB of shared memory a CTA
};
// The features that the kernels for few rows in kernels/sm90/ need.
inline constexpr unsigned kFewRowKernels = kBulkCopies | kLargeClusters | kLargeShared;

struct Features {
  int major = 0, minor = 0;     // compute capability
  unsigned has = 0;             // Feature
  size_t shared_per_block = 0;  // bytes that a CTA may ask for
  constexpr bool have(unsigned needs) const { return (needs & ~has) == 0; }
};

// The features of a compute capability. code: the capability that the kernels were compiled for, 10 major +
// minor. Code that the driver makes of PTX of 8.0 has nothing newer, on whatever device it runs.
Features features_of(int major, int minor, int code);
// The same with at most so many bytes of shared memory a CTA. The kernels that need wgmma take all that
// Hopper has, so with less there is no kWgmma either.
Features with_shared(Features features, size_t most);
// Words for people: "bulk copies, clusters, early launch; 99 KB of shared memory a block".
std::string describe(const Features& features);

// Bytes of shared memory that a CTA may have, as MOESAIC_MAX_SHARED says in kilobytes, so that one card can
// be tried with another's limit; the largest number where it says nothing. An error where it says nonsense.
Result<size_t> most_shared();
// The features of a device, which is asked once. Public reports contradict each other on clusters on 12.x,
// and no card of 10.x or 11.x has been met, so there the device says which clusters it runs.
Result<Features> features_of_device(int device);

// True where kernels may start before their predecessor has ended: the current device has
// kProgrammaticLaunch, the environment does not say MOESAIC_PDL=0, and nobody has turned it off for the
// process. Thread-safe.
bool early_launches();
void set_early_launches(bool on);
void set_plain_launches(bool on);  // the calling thread's are plain meanwhile

}  // namespace moesaic::cuda
