#include "backend/cuda/runtime/features.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/shared_limits.h"
#include "base/error.h"
#include "base/strings.h"

namespace moesaic::cuda {
namespace {

constexpr size_t kKilobyte = 1024, kLeastShared = 48;

size_t shared_per_block(int major, int minor) {
  if (major == 8) return minor == 0 || minor == 7 ? kAmpereShared : kSmallestShared;
  if (major == 9 || major == 10 || major == 11) return kHopperShared;
  return major >= 12 ? kSmallestShared : kLeastShared * kKilobyte;
}

Result<Features> ask(int device) {
  const DeviceGuard guard(device);
  RETURN_IF_ERROR(guard.status());
  cudaDeviceProp p{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&p, device), "device"));
  int code = 0;
  RETURN_IF_ERROR(check(read_code_version(code), "the kernels' code"));
  ASSIGN_OR_RETURN(const size_t most, most_shared());
  Features f = features_of(p.major, p.minor, code);
  if (p.major != 9) {
    if (f.have(kClusters) && !runs_clusters(8)) f.has &= ~unsigned{kClusters};
    if (f.have(kLargeClusters) && !runs_clusters(16)) f.has &= ~unsigned{kLargeClusters};
  }
  if (p.sharedMemPerBlockOptin > 0) f.shared_per_block = p.sharedMemPerBlockOptin;
  return with_shared(f, most);
}

Result<size_t> read_most_shared() {
  const char* const text = std::getenv("MOESAIC_MAX_SHARED");
  if (text == nullptr) return std::numeric_limits<size_t>::max();
  const size_t kilobytes = number_of<size_t>(text).value_or(0);
  if (kilobytes < kLeastShared || kilobytes > kHopperShared / kKilobyte)
    return invalid("MOESAIC_MAX_SHARED={}: expected kilobytes, {} to {}", text, kLeastShared,
                   kHopperShared / kKilobyte);
  return kilobytes * kKilobyte;
}

bool environment_allows() {
  const char* const value = std::getenv("MOESAIC_PDL");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

thread_local bool plain_here = false;

std::atomic<bool>& allowed() {
  static std::atomic<bool> early = environment_allows();
  return early;
}

}  // namespace

Features features_of(int major, int minor, int code) {
  constexpr int kAda = 89, kHopper = 90, kDataCentre = 10;
  Features f{.major = major, .minor = minor, .shared_per_block = shared_per_block(major, minor)};
  if (10 * major + minor >= kHopper && code >= kHopper) {
    f.has = kBulkCopies | kClusters | kProgrammaticLaunch;
    if (f.shared_per_block >= kHopperShared) f.has |= kLargeClusters | kLargeShared;
    if (major == 9) f.has |= kWgmma;
    if (major == 12) f.has |= kBlockScaledMma;
  }
  // On 10.x the compiler widens its operands, too, and no test needs that.
  if (10 * major + minor >= kAda && code >= kAda && major != kDataCentre) f.has |= kFp8Mma;
  return f;
}

Features with_shared(Features features, size_t most) {
  features.shared_per_block = std::min(features.shared_per_block, most);
  if (features.shared_per_block < kHopperShared) features.has &= ~unsigned{kLargeShared | kWgmma};
  return features;
}

std::string describe(const Features& features) {
  std::vector<std::string> names;
  for (const auto& [feature, name] : {std::pair{kBulkCopies, "bulk copies"},
                                      {kClusters, "clusters"},
                                      {kLargeClusters, "clusters of 16"},
                                      {kProgrammaticLaunch, "early launch"},
                                      {kWgmma, "wgmma"},
                                      {kBlockScaledMma, "block-scaled MMA"},
                                      {kFp8Mma, "FP8 MMA"}}) {
    if (features.have(feature)) names.emplace_back(name);
  }
  return fmt::format("{}; {} KB of shared memory a block",
                     names.empty() ? "those of 8.0" : fmt::to_string(fmt::join(names, ", ")),
                     features.shared_per_block / kKilobyte);
}

Result<size_t> most_shared() {
  static const Result<size_t> most = read_most_shared();
  return most;
}

Result<Features> features_of_device(int device) {
  static PerDevice<Features> known;
  return known.get_for(device, [device] { return ask(device); });
}

bool early_launches() {
  if (plain_here || !allowed().load(std::memory_order_relaxed)) return false;
  const Result<int> device = current_device();
  const Result<Features> f = device.ok() ? features_of_device(device.value()) : device.status();
  return f.ok() && f.value().have(kProgrammaticLaunch);
}

void set_early_launches(bool on) { allowed() = on; }
void set_plain_launches(bool on) { plain_here = on; }

}  // namespace moesaic::cuda
