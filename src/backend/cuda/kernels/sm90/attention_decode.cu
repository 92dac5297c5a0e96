// Attention of single rows (decoding) over the paged KV cache: latency where contexts are short,
// bandwidth where they are long.
//
// Maths    out[h] = sum_j w_j v_j / (sum_j w_j + exp(sink_h)), w_j = exp(q_h . k_j / sqrt(D)), over the
//          keys j of the row's window; heads h share the keys of KV head h / group. attention.h has the
//          order of the sums.
// Shapes   q [rows, heads, D] BF16, pages of 32 tokens (kv_page.h draws them) BF16 or E4M3, D = 32, 64 or
//          128.
//
// Grid     x: a cluster of the row's KV splits, up to 16, by the number of its pages alone (kv_splits_of())
//          y: KV head, and each eight of its query heads    z: row
// CTA      one KV split. Four warps, alike: each streams every fourth page of the split by bulk copies
//          through slots of its own, scores, weighs and adds page by page, alone. Lane 0 asks for K's
//          pages, lane 1 for V's. Both products have keys or dimensions as the MMA's 16 rows and heads as
//          its 8 columns. The warps' results are joined in shared memory; then each CTA of the cluster
//          finishes some of the (head, 32 dimensions), for which the others send it their results
//          (attention_decode_join.cuh).
//
// Barriers ready[slot]: K's and V's copies have landed; two arrivals, of the lanes that asked. Its phase
//          turns once a page, so a warp that waits for page n of a slot waits for parity n / slots.
//          arrived: the inbox is full; the other CTAs' st.async complete its bytes.
// Ordering A slot is overwritten by a copy only behind fence.proxy.async of every lane that read it and
//          the warp's barrier: no copy overtakes a read, however fast it is. st.async makes data and
//          barrier of the inbox visible together. A CTA may end while its own sends are in flight; it
//          is their target that must live, and it does: it waits for `arrived`, or has no part and is
//          sent nothing. That all CTAs of the cluster have started (and their barriers are there) is what
//          the cluster's barrier says. Pages of earlier steps, `tiles` and `pages` are read before the
//          predecessor has ended (attention.h says why that is sound), pages that the predecessor writes,
//          from RowTile::written on, and q only after it.
// Resident The CTAs of a cluster are scheduled together; nothing else waits for another CTA.
//
// Bytes    each page of K and V once per eight query heads. Shared memory: 64 KB of slots (D = 64, BF16),
//          the inbox of up to 136 max(16, D / 4) bytes, and little: a CTA of the projections fits beside
//          it. The next kernel is launched only when few pages are left to ask for, since its weights
//          would delay them.
// Floor    bytes / bandwidth; of short contexts two dependent reads and two joins, some 4 us on an H200.
#include <algorithm>
#include <bit>

#include "backend/cuda/kernels/sm90/attention_decode_join.cuh"
#include "backend/cuda/runtime/shared_limits.h"

namespace moesaic::cuda {
namespace attention_decode {
namespace {

// Clusters that the query heads of a KV head take.
__host__ __device__ inline int eights_of(const Attention& p) {
  return (p.heads / p.kv_heads + kHeads - 1) / kHeads;
}

// Slots for pages of K and V, as they stand in the cache. A warp's are every kWarps-th.
template <int D, bool kFp8>
struct PageRing {
  static constexpr int kPageBytes = kPageTokens * D * (kFp8 ? 1 : 2), kSlotBytes = 2 * kPageBytes;
  static constexpr int kSlots = kFp8 ? 4 : 2;  // slots of a warp
};

// Behind it the inbox and the ring.
template <int D, bool kFp8>
struct RowShared {
  uint64_t ready[kWarps * PageRing<D, kFp8>::kSlots];
  uint64_t arrived;  // the inbox is full
  alignas(16) float sinks[kHeads];
};

// Where the ring begins in shared memory.
template <int D, bool kFp8>
__host__ __device__ constexpr int ring_at(int size) {
  return (static_cast<int>(sizeof(RowShared<D, kFp8>)) + Inbox<D>::bytes(size) + 127) / 128 * 128;
}

// A row's keys, and of its pages those of the cluster's CTA `rank`.
struct KvSplit {
  int first, last;  // keys of the row
  int page, count;  // pages of the KV split
  int kv_splits;    // splits that have pages
  int written;      // the first page that the predecessor writes

  __device__ KvSplit(const Attention& p, const RowTile& tile, int rank)
      : first(p.window > 0 ? max(0, tile.position - p.window + 1) : 0),
        last(tile.position),
        written(tile.written / kPageTokens) {
    const int from = first / kPageTokens, pages = last / kPageTokens - from + 1;
    kv_splits = kv_splits_of(pages);
    page = from + rank * pages / kv_splits;
    count = rank < kv_splits ? from + (rank + 1) * pages / kv_splits - page : 0;
  }
  __device__ bool is_written(int i) const { return page + i >= written; }
};

// ---- a CTA ----

// A warp's pages of the KV split. Its first lane asks for K's, its second for V's.
template <int D, bool kFp8>
struct WarpPages {
  using R = PageRing<D, kFp8>;
  const Attention& p;
  const RowTile& tile;
  const KvSplit& split;
  uint32_t ring, ready;  // addresses of a slot
  int kv_head, warp, lane;
  int64_t next = 0;  // lane n's is where the warp's page kSlots + n lies in the cache, in bytes

  // The place of the warp's page n in the KV split.
  __device__ int index(int n) const { return warp + kWarps * n; }
  __device__ bool has(int n) const { return index(n) < split.count; }
  __device__ bool asked_for_most(int count) const { return !has(count + kEarlyPages); }
  __device__ int64_t locate(int n) const {
    return has(n) ? page_at(p, tile, split.page + index(n), kv_head, R::kPageBytes) : 0;
  }
  __device__ int slot(int n) const { return index(n % R::kSlots); }
  __device__ uint32_t barrier(int slot) const { return ready + slot * sizeof(uint64_t); }
  // By lanes 0 and 1.
  __device__ void ask(int slot, int64_t at) const {
    const auto* from = static_cast<const uint8_t*>(lane % 2 == 0 ? p.k : p.v);
    mbarrier_arrive_expect_tx(barrier(slot), R::kPageBytes);
    cp_async_bulk(ring + slot * R::kSlotBytes + lane % 2 * R::kPageBytes, from + at, R::kPageBytes,
                  barrier(slot), evict_first_policy());
  }
  // The first of them, two lanes each. written: those that are being written until the predecessor has ended.
  __device__ void ask_first(int64_t at, bool written) const {
    const int n = lane / 2;
    if (n < R::kSlots && has(n) && split.is_written(index(n)) == written) ask(slot(n), at);
  }
  // The warp's page n, in shared memory.
  __device__ uint32_t await(int n) const {
    mbarrier_wait(barrier(slot(n)), n / R::kSlots & 1);
    return ring + slot(n) * R::kSlotBytes;
  }
  // The warp has read it: the next one is copied to its place. All lanes must have passed fence_proxy_async()
  // and then __syncwarp() since their last read.
  __device__ void replace(int n) {
    if (n > 0 && n % 32 == 0) next = locate(R::kSlots + n + lane);
    const int64_t at = __shfl_sync(0xFFFFFFFFu, next, n % 32);
    if (lane < 2 && has(n + R::kSlots)) ask(slot(n), at);
    if (asked_for_most(n + R::kSlots + 1)) launch_dependents();
  }
};

template <int D, bool kFp8>
__device__ void attend_pages(RowSums<D>& values, const Queries<D, kFp8>& queries, WarpPages<D, kFp8>& pages) {
  const KvSplit& split = pages.split;
  const PageOffsets<D, kFp8> places(pages.lane);
#pragma unroll 1
  for (int n = 0; pages.has(n); ++n) {
    const uint32_t at = pages.await(n);
    PageFragments<D, kFp8> page;
    page.load_keys(at, places);
    float x[kKeyTiles][2];
    page.score(x, queries);
    page.load_values(at + PageRing<D, kFp8>::kPageBytes, places);
    // Reads through the generic proxy before the copy's writes through the async proxy: the fence orders each
    // lane's, the barrier all lanes' before the lanes that ask for the copy.
    fence_proxy_async();
    __syncwarp();
    pages.replace(n);
    const int key = (split.page + pages.index(n)) * kPageTokens;
    if (key < split.first || key + kPageTokens - 1 > split.last) {
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
        const int mine = key + key_of<kFp8>(t, pages.lane / 4);
        if (mine < split.first || mine > split.last) x[t][0] = x[t][1] = -INFINITY;
      }
    }
    uint32_t weights[kKeyTiles];
    values.template weigh<kFp8>(x, weights);
    page.add_to(values.acc, weights);
  }
}

template <int D, bool kFp8>
__global__ void __launch_bounds__(kThreads) __maxnreg__(D == 128 ? 255 : 112)
    attention_decode_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& s = *reinterpret_cast<RowShared<D, kFp8>*>(memory);
  uint8_t* ring = memory + ring_at<D, kFp8>(static_cast<int>(cluster_size()));
  auto& results = *reinterpret_cast<WarpResults<D>*>(ring);
  using R = PageRing<D, kFp8>;
  const int size = static_cast<int>(cluster_size()), rank = static_cast<int>(block_rank_in_cluster());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const RowTile tile = p.tiles[blockIdx.z];
  const KvSplit split(p, tile, rank);
  const int group = p.heads / p.kv_heads, eights = eights_of(p);
  const int kv_head = blockIdx.y / eights, first = blockIdx.y % eights * kHeads,
            heads = min(group - first, kHeads), head = kv_head * group + first;
  const int parts = heads * (D / kSlice);  // parts of all CTAs
  const Inbox<D> inbox(&s + 1, size, __popc(size - 1));
  if (threadIdx.x == 0) {
    const int mine = rank < parts ? (parts - rank + size - 1) >> inbox.shift : 0;
    mbarrier_init(&s.arrived, 1), fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&s.arrived, mine * split.kv_splits * Inbox<D>::kEntryBytes);
  }
  if (lane == 0) {
    for (int i = 0; i < R::kSlots; ++i) mbarrier_init(s.ready + warp + kWarps * i, 2);
    fence_mbarrier_init();
  }
  __syncwarp();
  WarpPages<D, kFp8> pages{p,       tile, split, kept(smem_addr(ring)), kept(smem_addr(s.ready)),
                           kv_head, warp, lane};
  const int64_t at = pages.locate(lane / 2);
  pages.ask_first(at, false);
  if (size > 1) __syncwarp(), cluster_arrive_relaxed();
  pages.next = pages.locate(R::kSlots + lane);
  if (pages.asked_for_most(R::kSlots)) launch_dependents();
  if (threadIdx.x < heads) s.sinks[threadIdx.x] = p.sinks[head + threadIdx.x];
  const ActivationRow row(p.out_tile, p.heads * D, tile.row);
  if (size > 1) cluster_wait();
  __syncthreads();
  wait_for_predecessor();
  pages.ask_first(at, true);
  Queries<D, kFp8> queries;
  queries.load(p.q + (static_cast<int64_t>(tile.row) * p.heads + head) * D, heads, lane);
  RowSums<D> values;
  attend_pages(values, queries, pages);
  __syncthreads();  // the ring's copies are all used
  if (warp < split.count) values.leave(results, warp, lane);
  __syncthreads();
  const int warps = min(kWarps, split.count);
  if (size == 1) {
    join_warps(results, warps, heads, [&](int i, int d, const float4& v, const Running& of) {
      const float by = last_factor(of, s.sinks[i]);
      const float x[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
      const auto pair = [&](float lo, float hi) { return p.bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi); };
      const uint2 words = {pair(x[0], x[1]), pair(x[2], x[3])};
      const int column = (head + i) * D + d;
      if (p.out_tile == 0) {
        static_cast<uint2*>(p.out)[row.at(column) / 4] = words;
      } else {
        auto* const out = static_cast<uint32_t*>(p.out);
        out[row.at(column) / 2] = words.x, out[row.at(column + 2) / 2] = words.y;
      }
    });
    return;
  }
  if (split.count > 0) {
    join_warps(results, warps, heads, [&](int i, int d, const float4& v, const Running& of) {
      const int part = i * (D / kSlice) + d / kSlice, to = inbox.owner(part), entry = inbox.at(part, rank);
      const uint32_t arrived = mapa(&s.arrived, to);
      st_async(mapa(inbox.values + entry * kSlice + d % kSlice, to), v, arrived);
      if (d % kSlice == 0) st_async(mapa(inbox.stats + entry, to), make_float2(of.max, of.sum), arrived);
    });
  }
  if (rank >= parts) return;
  mbarrier_wait(&s.arrived, 0);
  const KvSplitJoin joint(split.kv_splits, lane);
#pragma unroll 1
  for (int item = warp;; item += kWarps) {
    const int part = rank + item / joint.groups * size;
    if (part >= parts) break;
    const int i = part / (D / kSlice), d = item % joint.groups * joint.dimensions + joint.dimension;
    const float x = joint.join(inbox, part, d, s.sinks[i]);
    if (joint.first > 0) continue;
    const int64_t to = row.at((head + i) * D + part % (D / kSlice) * kSlice + d);
    if (p.bf16) {
      static_cast<__nv_bfloat16*>(p.out)[to] = __float2bfloat16_rn(x);
    } else {
      static_cast<__half*>(p.out)[to] = __float2half_rn(x);
    }
  }
}

template <int D, bool kFp8>
Status run(const Attention& p, int kv_splits, cudaStream_t stream) {
  const auto kernel = attention_decode_kernel<D, kFp8>;
  using R = PageRing<D, kFp8>;
  const auto shared = [](int size, int slots) {
    return ring_at<D, kFp8>(size) + std::max<int>(slots * R::kSlotBytes, sizeof(WarpResults<D>));
  };
  // With fewer KV splits than the most, each has at most kKvSplitPages pages.
  constexpr int kMostSlots = kWarps * R::kSlots;
  const int size = static_cast<int>(std::bit_ceil<unsigned>(kv_splits)),
            slots = kv_splits < kMostKvSplits ? kKvSplitPages : kMostSlots;
  static_assert(shared(kMostKvSplits, kMostSlots) <= static_cast<int>(kHopperShared));
  static OncePerDevice prepared;
  const Status status = prepared.run([&] {
    return set_attributes(kernel, {.max_shared = static_cast<size_t>(shared(kMostKvSplits, kMostSlots)),
                                   .prefer_shared = true,
                                   .large_clusters = true});
  });
  if (!status.ok()) return status;
  return launch_clusters(size, kernel, dim3(size, p.kv_heads * eights_of(p), p.tile_count), dim3(kThreads),
                         shared(size, slots), stream, p);
}

}  // namespace
}  // namespace attention_decode

Status attend_decode(const Attention& p, cudaStream_t stream) {
  // Pages that a window may touch, whatever its position.
  const int most =
      p.window > 0 ? kv_splits_of((p.window + kPageTokens - 2) / kPageTokens + 1) : kMostKvSplits;
  return for_shape(p, [&](auto d, auto fp8) {
    return attention_decode::run<d, fp8>(p, std::min(p.kv_splits, most), stream);
  });
}

}  // namespace moesaic::cuda
