#include "backend/cuda/runtime/features.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr size_t kKilobyte = 1024;

// CUDA's programming guide, "Technical Specifications per Compute Capability".
size_t shared_per_block(int major, int minor) {
  if (major == 8) return (minor == 0 || minor == 7 ? 163 : 99) * kKilobyte;
  if (major == 9 || major == 10 || major == 11) return 227 * kKilobyte;
  return major >= 12 ? 99 * kKilobyte : 48 * kKilobyte;
}

Result<Features> ask(int device) {
  const DeviceGuard guard(device);
  RETURN_IF_ERROR(guard.status());
  cudaDeviceProp p{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&p, device), "device"));
  int code = 0;
  RETURN_IF_ERROR(check(read_code_version(code), "the kernels' code"));
  Features f = features_of(p.major, p.minor, code);
  if (p.major == 12 && f.have(kClusters) && !runs_clusters()) f.has &= ~unsigned{kClusters};
  if (p.sharedMemPerBlockOptin > 0) f.shared_per_block = p.sharedMemPerBlockOptin;
  return f;
}

bool environment_allows() {
  const char* const value = std::getenv("MOESAIC_PDL");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

std::atomic<bool>& allowed() {
  static std::atomic<bool> early = environment_allows();
  return early;
}

}  // namespace

Features features_of(int major, int minor, int code) {
  constexpr int kHopper = 90;
  Features f{.major = major, .minor = minor, .shared_per_block = shared_per_block(major, minor)};
  if (10 * major + minor >= kHopper && code >= kHopper) {
    f.has = kBulkCopies | kClusters | kProgrammaticLaunch;
    if (major == 9) f.has |= kWgmma;
    if (major == 12) f.has |= kBlockScaledMma;
  }
  return f;
}

Result<Features> features_of_device(int device) {
  static PerDevice<Features> known;
  return known.get_for(device, [device] { return ask(device); });
}

bool early_launches() {
  if (!allowed().load(std::memory_order_relaxed)) return false;
  const Result<int> device = current_device();
  const Result<Features> f = device.ok() ? features_of_device(device.value()) : device.status();
  return f.ok() && f.value().have(kProgrammaticLaunch);
}

void set_early_launches(bool on) { allowed() = on; }

}  // namespace moesaic::cuda
