#include "backend/cpu/kernels_amx.h"

namespace moesaic::cpu {

void gemm_amx_emulated(const PairTask& task) { gemm_by_tiles<EmulatedTiles>(task); }

}  // namespace moesaic::cpu
