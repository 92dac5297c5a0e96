// Memory that a model may still take on a device.
#pragma once

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// What the system and the driver say of it, in bytes.
struct MemoryFigures {
  bool integrated = false;    // the device shares the host's memory
  double host_available = 0;  // MemAvailable; infinite where Linux does not say
  double device_free = 0;     // of cudaMemGetInfo; 0 if it failed
};

// The driver of an integrated device (GB10) counts the page cache as used, though Linux gives it up when
// memory is allocated: there MemAvailable counts.
double free_memory(const MemoryFigures& figures);
// Of the current device; 0 where nothing says.
double free_memory();

}  // namespace moesaic::cuda
