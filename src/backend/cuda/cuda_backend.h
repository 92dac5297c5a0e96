// The CUDA backend: the whole model on one GPU.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda_device.h"

namespace moesaic {

// Empty where a usable device, driver and code for it are present, else the reason.
std::string cuda_absent();
// The machine code and PTX that this build carries.
std::string cuda_code();
// Call it before anything of the process uses CUDA, if several ranks are to compute a model.
void prepare_cuda_ranks();
// One each; none where there is no device or no driver.
std::vector<DeviceInfo> cuda_devices();
// Rows of a step at which prefill runs at full speed, as far as the device's memory bears it: 8,192 rows of
// the 20b take 1.4 GB.
int cuda_prefill_rows(const BackendOptions& options);
Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions& options);

}  // namespace moesaic
