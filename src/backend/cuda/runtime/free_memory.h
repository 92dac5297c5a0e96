// Memory that a model may still take on a device.
#pragma once

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// The bytes of it by the system and by the driver.
struct MemoryFigures {
  bool integrated = false;    // the device shares the host's memory
  double host_available = 0;  // MemAvailable; infinite where Linux does not say
  double device_free = 0;     // cudaMemGetInfo's; 0 if it failed
};

// The driver of an integrated device (GB10) counts the page cache as used, though Linux gives it up when
// memory is allocated: there MemAvailable counts.
double free_memory(const MemoryFigures& figures);
// The current device's; 0 where nothing says.
double free_memory();

}  // namespace moesaic::cuda
