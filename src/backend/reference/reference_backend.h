// The oracle: scalar code, double accumulation, weights read straight from the checkpoint's views. Slow on
// purpose.
#pragma once

#include "backend/backend.h"

namespace moesaic {

Result<std::unique_ptr<Backend>> create_reference_backend(const BackendOptions& options);

}  // namespace moesaic
