// Memory layout of MXFP4 expert weights for the decode operator (moe_decode.cu), sm_90a. Written by
// repack.cu.
//
// slab  = 8 rows x 2880 columns of one expert, in three thirds of 30 K blocks (5 warps of 6 blocks each).
//         A third has 4096 bytes: per warp 816 bytes, which are words of blocks 0-3 [32 lanes][4], words of
//         blocks 4-5 [32 lanes][2] and E8M0 [8 rows][6]; then in the first third 8 BF16 biases, in the second
//         8 bytes, the rows' largest scales (at least 1). Lane = 4 * row + t holds columns 8t..8t+7 of each
//         block as one word.
// slab pair = two slabs (16 rows), third by third: slab a's, slab b's.
// FC1   = [expert][360 slab pairs], rows 2i gate and 2i+1 up as in the checkpoint.
// FC2   = [expert][slab pairs, then single slabs], rows in order, dealt to one CTA per multiprocessor so that
//         CTAs differ by one slab at most. CTA c has the slab pairs c, c + sms, .. and one single slab, if it
//         has one slab pair fewer than CTA 0 or if there are singles left. SlabLayout has the numbers:
//
//            sms  slab pairs  singles              rows of a CTA
//            132         132  96 of CTAs 0..95     24 or 16
//            114         132  96 of CTAs 18..113   32 (CTAs 0..17) or 24
//             78         156  48 of CTAs 0..47     40 or 32
// Word  = inverse over GF(2) of decode() (slab.cuh) applied to the 8 E2M1 codes in column order.
#pragma once
#include <cuda_fp16.h>
#include <stddef.h>
#include <stdint.h>

namespace moesaic::cuda {
namespace slabs {

constexpr int kHidden = 2880;
constexpr int kTopK = 4;
constexpr int kBlocks = kHidden / 32;                 // 90
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
constexpr int kSlabPairThird = 2 * kSlabThird;    // slab a, slab b
constexpr int kSlabBytes = kThirds * kSlabThird;  // 12288
constexpr int kSlabPairBytes = 2 * kSlabBytes;
constexpr int kFc1SlabPairs = 2 * kHidden / 16;  // 360 per expert
constexpr int kFc2Slabs = kHidden / 8;           // 360 per expert
constexpr size_t kFc1Bytes = (size_t)kFc1SlabPairs * kSlabPairBytes;
constexpr size_t kFc2Bytes = (size_t)kFc2Slabs * kSlabBytes;

// The number of an expert's slabs, and the deal of FC2's, which decides where they lie. slab_layout() makes
// this value once for a device, for the repacking and for every kernel that reads slabs. A rank
// (docs/design/parallel.md) has some of the rows: its slabs are counted from its first one.
struct SlabLayout {
  int sms = 0;  // multiprocessors that are used: CTAs of moe_decode, at most those of other kernels
  int fc2_slab_pairs = 0;                            // slab pairs of an expert; its other slabs are single
  int fc1_all = kFc1SlabPairs, fc2_all = kFc2Slabs;  // FC1's slab pairs and FC2's slabs of an expert

  __host__ __device__ constexpr size_t fc1_bytes() const { return (size_t)fc1_all * kSlabPairBytes; }
  __host__ __device__ constexpr size_t fc2_bytes() const { return (size_t)fc2_all * kSlabBytes; }
  __host__ __device__ constexpr int fc2_singles() const { return fc2_all - 2 * fc2_slab_pairs; }
  // CTAs that have a slab pair more than the others, and no single slab.
  __host__ __device__ constexpr int longer() const { return fc2_slab_pairs % sms; }
  // Slab pairs of CTA `cta`, and the index of its single slab: it has one if 0 <= index < fc2_singles().
  __host__ __device__ constexpr int slab_pairs_of(int cta) const {
    return fc2_slab_pairs % sms == 0 ? fc2_slab_pairs / sms : (fc2_slab_pairs - 1 - cta + sms) / sms;
  }
  __host__ __device__ constexpr int single_of(int cta) const { return longer() == 0 ? cta : cta - longer(); }
  // Rows of a CTA, at most.
  constexpr int most_rows() const {
    return (longer() == 0 ? fc2_slab_pairs / sms : fc2_slab_pairs / sms + 1) * 16 +
           (longer() == 0 && fc2_singles() > 0 ? 8 : 0);
  }
};
// The multiprocessors that it may have: a seventh of an H200 (MIG) to as many as FC2 has slab pairs.
constexpr int kFewestSms = 16, kMostSms = kHidden / 16;
constexpr int kFullSms = 132;  // an H100 SXM's or H200's
constexpr SlabLayout slab_layout(int sms, int fc1_slab_pairs = kFc1SlabPairs, int fc2_slabs = kFc2Slabs) {
  const int each = fc2_slabs / 2 / sms, left = fc2_slabs - 2 * each * sms;
  return {sms, each * sms + (left > sms ? left - sms : 0), fc1_slab_pairs, fc2_slabs};
}
static_assert(slab_layout(kFullSms).fc2_slab_pairs == 132 && slab_layout(kFullSms).most_rows() == 24);
static_assert(slab_layout(114).fc2_slab_pairs == 132 && slab_layout(114).most_rows() == 32);
static_assert(slab_layout(78).fc2_slab_pairs == 156 && slab_layout(78).most_rows() == 40);
constexpr int most_fc2_rows() {
  int most = 0;
  for (int sms = kFewestSms; sms <= kMostSms; ++sms) {
    const int rows = slab_layout(sms).most_rows();
    most = rows > most ? rows : most;
  }
  return most;
}

constexpr int kRowStride = kHidden * 2 + 64;  // bytes; the pad keeps two rows in different banks
constexpr int kSlice = kBlocksPerWarp * 64;   // bytes of an activation row that one consumer reads
constexpr float kHScale = 1024.0f;            // |h| <= 56
constexpr float kWeightScale = 16384.0f;      // undoes E2M1 x 2^-14
constexpr uint32_t kEmpty = 0xffffffffu;      // two FP16 NaNs that __float2half_rn never returns

}  // namespace slabs

namespace sm90 {
using namespace slabs;  // the kernels that read them
}
}  // namespace moesaic::cuda
