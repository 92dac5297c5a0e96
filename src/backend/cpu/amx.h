// AMX: whether this machine and its kernel have it, and the products that use it.
#pragma once

#include "backend/cpu/kernels.h"

namespace moesaic::cpu {

// Tiles of int8 and BF16, enabled by the system and permitted to this process, which is asked for here (once;
// any thread). A signal frame then takes 8 KB more: a thread whose alternate stack is too small for it keeps
// the system from granting it.
bool amx_permitted();

// Fewer tokens stay on vectors, where it was not measured (GemmTuning::expand_tokens). On an Emerald Rapids
// tiles win from 6 (MXFP4) and from 16 (int8) on where weights are in the caches; below some 8 the memory
// bounds both.
inline constexpr int kAmxExpandTokens = 8;

void gemm_amx(const PairTask& task);           // needs amx_permitted()
void gemm_amx_emulated(const PairTask& task);  // needs what kKernels_avx512 needs, and AVX512-VBMI

// Kernels::multiply and Kernels::to_block_float; need the same.
int64_t multiply_amx(int64_t rounds);
int64_t multiply_amx_emulated(int64_t rounds);
void amx_to_block_float(const float* x, int64_t n, uint16_t* out, int8_t* parts, float* unit, int32_t* bias);

}  // namespace moesaic::cpu
