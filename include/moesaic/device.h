// The devices of this machine, and the version of the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/version.h"

namespace moesaic {

struct DeviceInfo {
  std::string name;           // as OpenOptions::device takes it: cpu, cuda:0 or reference
  std::string backend;        // cpu, cuda or reference
  std::string description;    // the chip: "NVIDIA H200", "AMD EPYC 9575F"; empty: unknown
  std::string architecture;   // the code that runs is for it: sm_90; cpu: amx, avx512, ...
  int64_t memory_total = -1;  // bytes; -1: unknown
  int64_t memory_free = -1;   // bytes; of a cuda device only once a model is opened on it
  bool usable = true;
  std::string reason;  // why it is not usable
};

// In the order in which "auto" looks for one. Where no GPU is there, or none that this build can use, a row
// with the backend cuda says why. CUDA may make its context on a GPU for this, as for any program's first
// call.
std::vector<DeviceInfo> list_devices();

std::string_view version();  // the linked library's, such as "0.1.0"
int version_number();        // as MOESAIC_VERSION_NUMBER

}  // namespace moesaic
