#include "backend/cpu/kernels_amx.h"

#include "backend/cpu/hardware_tiles.h"

namespace moesaic::cpu {

void gemm_amx(const PairTask& task) { gemm_by_tiles<HardwareTiles>(task); }
int64_t multiply_amx(int64_t rounds) { return multiply_tiles<HardwareTiles>(rounds); }

}  // namespace moesaic::cpu
