// The kernel table that an option names. Apart from kernels.h, which the sources of every instruction set
// include.
#pragma once

#include <string>

#include "backend/cpu/kernels.h"
#include "moesaic/status.h"

namespace moesaic::cpu {

// isa: auto, or the name of one. An error lists those that this machine runs.
Result<const Kernels*> find_kernels(const std::string& isa);

}  // namespace moesaic::cpu
