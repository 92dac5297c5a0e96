// Four 8 x 8 matrices of 16-bit values from shared memory to a warp's registers.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

// row: the shared memory address of 16 bytes, from lane 8 i + j of row j of matrix i. r[i]: columns 2 (lane %
// 4) and + 1 of row lane / 4 of matrix i.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

}  // namespace moesaic::cuda
