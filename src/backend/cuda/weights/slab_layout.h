// Memory layout of MXFP4 expert weights for the decode operator (moe_decode.cu), sm_90a. Written by
// repack.cu.
//
// slab  = 8 rows x 2880 columns of one expert, three thirds of 30 K blocks (5 warps of 6 blocks each), 4096
// bytes each:
//         per warp 816 bytes: words of blocks 0-3 [32 lanes][4], words of blocks 4-5 [32 lanes][2], E8M0 [8
//         rows][6]; then, in the first third, 8 BF16 biases, in the second 8 bytes, the rows' largest scales
//         (at least 1). Lane = 4 * row + t holds columns 8t..8t+7 of each block as one word.
// unit  = two slabs (16 rows), third by third: slab a's, slab b's.
// FC1   = [expert][360 units], rows 2i gate and 2i+1 up as in the checkpoint.
// FC2   = [expert][132 units, then 96 slabs], rows in order: CTA c owns rows 16c..16c+15 (unit c) and, of the
//         first 96, 2112+8c..2112+8c+7 (slab c).
// Word  = inverse over GF(2) of decode() (slab.cuh) applied to the 8 E2M1 codes in column
// order.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace moesaic::cuda::sm90a {

constexpr int kHidden = 2880;
constexpr int kTopK = 4;
constexpr int kBlocks = kHidden / 32;                 // 90
constexpr int kGrid = 132;                            // one CTA per SM of a full H100 or H200
constexpr int kFc2Tail = kGrid * 16;                  // first row of FC2's single slabs
constexpr int kFc2Tails = (kHidden - kFc2Tail) / 8;   // single slabs: 96
constexpr int kFc2Rows = 24;                          // of a CTA, at most
constexpr int kConsumers = 15;                        // warps
constexpr int kBlocksPerWarp = kBlocks / kConsumers;  // 6
constexpr int kThreads = (kConsumers + 2) * 32;

// Slab: three thirds of 5 warps. Warp: words of blocks 0-3 (16 B per lane), of blocks 4-5 (8 B per lane),
// scales [8][6].
constexpr int kThirds = 3;
constexpr int kWarpsPerThird = kConsumers / kThirds;
constexpr int kWarpTail = 512, kWarpScales = 768, kWarpBytes = 816;
constexpr int kThirdBias = kWarpsPerThird * kWarpBytes;  // 8 BF16 in the first third of a slab
constexpr int kThirdTop = kThirdBias,
              kTopThird = 1;  // 8 bytes in the second third: each row's largest scale, at least 1
constexpr int kSlabThird = kThirdBias + 16;       // 4096
constexpr int kUnitThird = 2 * kSlabThird;        // slab a, slab b
constexpr int kSlabBytes = kThirds * kSlabThird;  // 12288
constexpr int kUnitBytes = 2 * kSlabBytes;
constexpr int kFc1Units = 2 * kHidden / 16;  // 360 per expert
constexpr size_t kFc1Bytes = (size_t)kFc1Units * kUnitBytes;
constexpr size_t kFc2Bytes = (size_t)(kHidden / 8) * kSlabBytes;
constexpr size_t kFc2Single = (size_t)kGrid * kUnitBytes;

constexpr int kRowStride = kHidden * 2 + 64;  // bytes; the pad keeps two rows in different banks
constexpr int kSlice = kBlocksPerWarp * 64;   // bytes of an activation row that one consumer reads
constexpr float kHScale = 1024.0f;            // |h| <= 56
constexpr float kWeightScale = 16384.0f;      // undoes E2M1 x 2^-14
constexpr uint32_t kEmpty = 0xffffffffu;      // two FP16 NaNs that __float2half_rn never returns

}  // namespace moesaic::cuda::sm90a
