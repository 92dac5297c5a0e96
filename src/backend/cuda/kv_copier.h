// Copies pages of the KV cache on a stream of its own, through a pinned buffer.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/runtime/step_wait.h"

namespace moesaic::cuda {

// page_bytes: of K and V of one layer. wait: for a copy; once one has failed every later one is an error.
// Null where the device gives no stream or host memory.
std::unique_ptr<KvCopier> make_kv_copier(int device, std::span<const Layer> layers, size_t page_bytes,
                                         const StepWait& wait);

}  // namespace moesaic::cuda
