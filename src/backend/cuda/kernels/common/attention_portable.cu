// attend_portable(): attention_portable.cuh over the engine's own pages, which a ring copies as they stand
// (page_copy.cuh).
#include "backend/cuda/kernels/common/attention_portable.cuh"
#include "backend/cuda/kernels/ptx/page_copy.cuh"

namespace moesaic::cuda {
namespace {

// Two pairs of neighbours, at elements `at0` and `at1` of a page, as BF16.
template <bool kFp8>
__device__ inline uint2 pairs(const uint8_t* page, int at0, int at1) {
  if constexpr (kFp8) {
    const uint32_t lo = *reinterpret_cast<const uint16_t*>(page + at0);
    return widen_e4m3(lo | static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(page + at1)) << 16);
  } else {
    return {*reinterpret_cast<const uint32_t*>(page + 2 * at0),
            *reinterpret_cast<const uint32_t*>(page + 2 * at1)};
  }
}

template <int D, bool kOfFp8>
struct OwnPages {
  static constexpr int kHeadDim = D;
  static constexpr bool kFp8 = kOfFp8;
  using Ring = PairRing<attention_portable::kStages, kPageTokens * D*(kFp8 ? 1 : 2)>;

  __device__ void fetch(Ring& ring, const Attention& p, const RowTile& tile,
                        const attention_portable::Pages& pages, int n) const {
    const int page = pages.page(n);
    if (page >= pages.to) return ring.fetch(n, nullptr, nullptr);
    const int64_t at = page_at(p, tile, page, blockIdx.y, sizeof(ring.first[0]));
    ring.fetch(n, static_cast<const uint8_t*>(p.k) + at, static_cast<const uint8_t*>(p.v) + at);
  }
  static __device__ bool failed(const Ring&) { return false; }

  // The right operands: keys 8 n + g at dimensions 16 step + ..., dimension 8 n + g at tokens 16 step + ...
  static __device__ uint2 key_pairs(const uint8_t* page, int n, int step, int g, int c) {
    const int key = 8 * n + g, d = 16 * step + 2 * c;
    return kFp8 ? pairs<kFp8>(page, k8_at(D, key, d), k8_at(D, key, d + 8))
                : pairs<kFp8>(page, k_at(D, key, d), k_at(D, key, d + 8));
  }
  static __device__ uint2 value_pairs(const uint8_t* page, int n, int step, int g, int c) {
    const int d = 8 * n + g, slot = 16 * step + 2 * c;
    return kFp8 ? pairs<kFp8>(page, v8_at(slot, d), v8_at(slot + 8, d))
                : pairs<kFp8>(page, v_at(slot, d), v_at(slot + 8, d));
  }
};

}  // namespace

Status attend_portable(const Attention& p, const SpanScratch& scratch, cudaStream_t stream) {
  if (p.tile_count == 0) return {};
  return for_shape(
      p, [&](auto d, auto fp8) { return attention_portable::run(p, scratch, OwnPages<d, fp8>(), stream); });
}

}  // namespace moesaic::cuda
