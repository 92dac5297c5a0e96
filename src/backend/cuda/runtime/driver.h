// Functions of the driver. The program does not link it, so that it starts where there is none.
#pragma once

#include <cuda.h>

#include <string>

#include "moesaic/status.h"

namespace moesaic::cuda {

// The function as the driver has it for programs of CUDA `since` (1000 major + 10 minor); null where it has
// none.
void* driver_function(const char* name, unsigned since);
template <class Function>
Function* driver_function(const char* name, unsigned since) {
  return reinterpret_cast<Function*>(driver_function(name, since));
}
Status check_driver(CUresult code, const std::string& what);

}  // namespace moesaic::cuda
