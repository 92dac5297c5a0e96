// The CPU backend: repacked weights, integer dot products, one kernel table per instruction set chosen at run
// time.
#pragma once

#include "backend/backend.h"

namespace moesaic {

std::vector<DeviceInfo> cpu_devices();  // one
Result<std::unique_ptr<Backend>> create_cpu_backend(const BackendOptions& options);

}  // namespace moesaic
