// Attention of single rows: latency where contexts are short, bandwidth where they are long.
//
//   row      its pages in up to 16 equal shares, by their number alone (shares_of())
//   cluster  of a row and up to 8 query heads of a KV head: a thread block a share
//   block    four warps, each of which streams every fourth page of the share through slots of its own, 64 KB
//            in all (head_dim 64), by bulk copies, which are on their way before the predecessor has ended
//            but for the newest page. It scores, weighs and adds page by page, alone; a page is in registers
//            before it is weighed, and the next one on its way to its slot
//
// Thread blocks that need few registers and leave room: they wait beside those of the projection before them,
// and those of the one behind wait beside them, but are called only when few pages are left to ask for, since
// their weights would delay them. A multiprocessor has one of them then, so what its slots hold is what is on
// its way: 8 MB in all, more than it takes to keep the memory busy.
//
// The warps' results are joined in shared memory. Then each thread block finishes some of the (head, 32
// dimensions), for which the others send it their results.
//
// Both products have keys or dimensions as the MMA's 16 rows and heads as its 8 columns.
#include <algorithm>
#include <bit>

#include "backend/cuda/kernels/common/attention_parts.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"

namespace moesaic::cuda {
namespace {

using namespace sm90a;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kHeads = 8;   // of a thread block: the columns of an MMA
constexpr int kSlice = 32;  // dimensions that a warp finishes
constexpr int kKeyTiles = kPageTokens / 8;
constexpr int kLeft = 3;  // pages of a warp not yet asked for when the successor may start

// Clusters that the query heads of a KV head take.
__host__ __device__ inline int eights_of(const Attention& p) {
  return (p.heads / p.kv_heads + kHeads - 1) / kHeads;
}

// Slots for pages of K and V, as they stand in the cache. A warp's are every kWarps-th.
template <int D, bool kFp8>
struct Ring {
  static constexpr int kPageBytes = kPageTokens * D * (kFp8 ? 1 : 2), kSlotBytes = 2 * kPageBytes;
  static constexpr int kSlots = kFp8 ? 4 : 2;  // of a warp
};

// What a warp has of its pages, where the ring was.
template <int D>
struct Results {
  static constexpr int kStride = D + 4;  // no bank conflicts
  float values[kWarps][kHeads][kStride];
  Running stats[kWarps][kHeads];
};

// Behind it the inbox and the ring.
template <int D, bool kFp8>
struct Shared {
  uint64_t ready[kWarps * Ring<D, kFp8>::kSlots];
  uint64_t arrived;  // the inbox is full
  alignas(16) float sinks[kHeads];
};

// What a cluster's thread blocks send to the one that finishes part i (head i / (D / 32) and so on), which is
// i % size: [its parts, blocks].
template <int D>
struct Inbox {
  static constexpr int kParts = kHeads * D / kSlice;
  static constexpr int kEntryBytes = static_cast<int>(kSlice * sizeof(float) + sizeof(Running));
  float* values;    // [kSlice]
  Running* stats;   // behind all values
  int size, shift;  // of the cluster: 2^shift

  __device__ Inbox(void* at, int size, int shift)
      : values(static_cast<float*>(at)),
        stats(reinterpret_cast<Running*>(values + entries(size) * kSlice)),
        size(size),
        shift(shift) {}
  __host__ __device__ static int entries(int size) { return kParts < size ? size : kParts; }
  __device__ int owner(int part) const { return part & (size - 1); }
  __device__ int at(int part, int block) const { return (part >> shift << shift) + block; }
  __host__ __device__ static int bytes(int size) { return size == 1 ? 0 : entries(size) * kEntryBytes; }
};

// Where the ring begins in shared memory.
template <int D, bool kFp8>
__host__ __device__ constexpr int ring_at(int size) {
  return (static_cast<int>(sizeof(Shared<D, kFp8>)) + Inbox<D>::bytes(size) + 127) / 128 * 128;
}

__device__ inline uint32_t cluster_size() {
  uint32_t n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ inline uint32_t transposed(uint32_t rows) {
  uint32_t columns;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}
// Over the lanes that hold the same columns.
__device__ inline float rows_max(float x) {
  for (int offset = 4; offset < 32; offset *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}
__device__ inline float rows_sum(float x) {
  for (int offset = 4; offset < 32; offset *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// A row's keys, and of its pages those of the cluster's thread block `rank`.
struct Share {
  int first, last;  // keys of the row
  int page, count;  // pages of the share
  int shares;       // that have pages

  __device__ Share(const Attention& p, const RowTile& tile, int rank)
      : first(p.window > 0 ? max(0, tile.position - p.window + 1) : 0), last(tile.position) {
    const int from = first / kPageTokens, pages = last / kPageTokens - from + 1;
    shares = shares_of(pages);
    page = from + rank * pages / shares;
    count = rank < shares ? from + (rank + 1) * pages / shares - page : 0;
  }
  __device__ bool is_newest(int i) const { return page + i == last / kPageTokens; }
};

// ---- the two products, of a page ----

// FP8: which dimensions and keys stand in which slot of a contraction is free as long as both operands agree.
// A lane has D / 4 bytes of a key's row of up to 64 that lie together, four to an MMA, and keys 8 c .. 8 c +
// 7 of a dimension's, four to an MMA.
template <int D>
inline constexpr int kRowBytes = D < 64 ? D : 64;
// Word of a query (two dimensions) that stands in half `i` (0, 1) of step `step`.
template <int D, bool kFp8>
__device__ inline int query_word(int step, int i, int c) {
  if constexpr (!kFp8) return step * 8 + i * 4 + c;
  constexpr int kSteps = kRowBytes<D> / 16;
  return step / kSteps * (kRowBytes<D> / 2) + c * (kRowBytes<D> / 8) + step % kSteps * 2 + i;
}
// The key in row g of tile t.
template <bool kFp8>
__device__ inline int key_of(int t, int g) {
  return kFp8 ? g / 2 * 8 + 2 * t + g % 2 : 8 * t + g;
}

// F16's greatest number stands for what is beyond.
__device__ inline uint32_t bf16_to_f16(uint32_t pair) {
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  const auto limited = [](float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); };
  return pack_f16(limited(v.x), limited(v.y));
}

// B fragments, steps of 16 dimensions: column g is head g.
template <int D, bool kFp8>
struct Queries {
  uint32_t q[D / 16][2];

  __device__ void load(const __nv_bfloat16* heads, int count, int lane) {
    const int g = lane / 4, c = lane % 4;
    const auto* from = reinterpret_cast<const uint32_t*>(heads) + g * (D / 2);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t word = g < count ? from[query_word<D, kFp8>(step, i, c)] : 0;
        q[step][i] = kFp8 ? bf16_to_f16(word) : word;
      }
    }
  }
};

// Where in a page in shared memory a lane's operands begin: of K 16 keys and of V 16 dimensions further on
// they stand in the same places of their rows. In BF16 a step of 16 dimensions or keys along a row turns the
// same bits of the place over, whatever the row's permutation.
template <int D, bool kFp8>
struct Places {
  static constexpr int kDimensions = 16 * kPageTokens * (kFp8 ? 1 : 2);
  uint32_t k, v;

  __device__ explicit Places(int lane) {
    const int g = lane / 4, c = lane % 4, row = lane % 16, half = lane / 16 * 8;
    if constexpr (kFp8) {
      k = k8_at(D, key_of<true>(0, g), c * (kRowBytes<D> / 4)), v = v8_at(8 * c, g);
    } else {
      k = 2 * k_at(D, row, half), v = 2 * v_at(half, row);
    }
  }
  static __device__ uint32_t step(uint32_t at, int i) { return at ^ i * 32; }
};

__device__ inline void load_words(uint32_t (&to)[2], uint32_t at) {
  const uint2 v = load_shared<uint2>(at);
  to[0] = v.x, to[1] = v.y;
}
__device__ inline void load_words(uint32_t (&to)[4], uint32_t at) {
  const uint4 v = load_shared<uint4>(at);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
// What a lane has of a page: A fragments of 16 keys or dimensions each, FP8 as it stands in the page.
template <int D, bool kFp8>
struct Page {
  static constexpr int kRowSteps = kRowBytes<D> / 16, kParts = D / kRowBytes<D>;
  uint32_t k[kKeyTiles / 2][kFp8 ? 2 * kParts : D / 16][kFp8 ? kRowSteps : 4];
  uint32_t v[D / 16][2][kFp8 ? 2 : 4];

  __device__ void load_keys(uint32_t keys, const Places<D, kFp8>& places) {
#pragma unroll
    for (int m = 0; m < kKeyTiles / 2; ++m) {
      if constexpr (kFp8) {
        // Tiles 2 m and 2 m + 1: keys two apart.
#pragma unroll
        for (int i = 0; i < 2 * kParts; ++i)
          load_words(k[m][i], keys + places.k + (i / 2 * kPageTokens + 4 * m + i % 2 * 2) * kRowBytes<D>);
      } else {
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
          load_matrices(k[m][step], places.step(keys + places.k, step % kRowSteps) +
                                        (step / kRowSteps * kPageTokens + 16 * m) * (2 * kRowBytes<D>));
      }
    }
  }
  __device__ void load_values(uint32_t values, const Places<D, kFp8>& places) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t at = values + m * places.kDimensions;
        if constexpr (kFp8) {
          load_words(v[m][i], at + places.v + i * (places.kDimensions / 2));
        } else {
          load_matrices(v[m][i], places.step(at + places.v, i));
        }
      }
    }
  }

  // x[t][h]: of key_of(t, g) and head 2 c + h. Two chains of MMAs.
  __device__ void score(float (&x)[kKeyTiles][2], const Queries<D, kFp8>& queries) const {
#pragma unroll
    for (int m = 0; m < kKeyTiles / 2; ++m) {
      float s[2][4] = {};
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        const auto& q = queries.q[step];
        if constexpr (kFp8) {
          const uint2 a = e4m3_to_f16(k[m][step / kRowSteps * 2][step % kRowSteps]),
                      b = e4m3_to_f16(k[m][step / kRowSteps * 2 + 1][step % kRowSteps]);
          mma<false>(s[step % 2], a.x, b.x, a.y, b.y, q[0], q[1]);
        } else {
          mma<true>(s[step % 2], k[m][step], q[0], q[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) x[2 * m + i / 2][i % 2] = s[0][i] + s[1][i];
    }
  }

  // acc[m][2 i + h] += weighted values: dimension 16 m + 8 i + g of head 2 c + h.
  __device__ void add_to(float (&acc)[D / 16][4], const uint32_t (&weights)[kKeyTiles]) const {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        if constexpr (kFp8) {
          const uint2 a = e4m3_to_f16(v[m][0][step]), b = e4m3_to_f16(v[m][1][step]);
          mma<false>(acc[m], a.x, b.x, a.y, b.y, weights[2 * step], weights[2 * step + 1]);
        } else {
          mma<true>(acc[m], v[m][step], weights[2 * step], weights[2 * step + 1]);
        }
      }
    }
  }
};

// What a lane has of its warp's pages: heads 2 c and 2 c + 1, of sums its own keys'.
template <int D>
struct Values {
  float acc[D / 16][4] = {};
  Running of[2] = {Running::nothing(), Running::nothing()};

  // Scores become weights relative to the greatest score so far, to which all before them is brought:
  // B fragments, column g being head g.
  template <bool kFp8>
  __device__ void weigh(float (&x)[kKeyTiles][2], uint32_t (&weights)[kKeyTiles]) {
    const float scale = score_scale(D);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = x[0][h];
#pragma unroll
      for (int t = 1; t < kKeyTiles; ++t) top = fmaxf(top, x[t][h]);
      top = fmaxf(of[h].max, __fmul_rn(rows_max(top), scale));
      const float kept = exp2_fast(of[h].max - top);
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) x[t][h] = exp2_fast(fmaf(x[t][h], scale, -top)), sum += x[t][h];
      of[h] = {top, fmaf(of[h].sum, kept, sum)};
#pragma unroll
      for (int m = 0; m < D / 16; ++m) acc[m][h] *= kept, acc[m][2 + h] *= kept;
    }
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t)
      weights[t] = transposed(kFp8 ? pack_f16(x[t][0], x[t][1]) : pack_bf16(x[t][0], x[t][1]));
  }

  __device__ void leave(Results<D>& to, int warp, int lane) const {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < D / 8; ++i) to.values[warp][2 * c + h][8 * i + g] = acc[i / 2][i % 2 * 2 + h];
      const float sum = rows_sum(of[h].sum);
      if (g == 0) to.stats[warp][2 * c + h] = {of[h].max, sum};
    }
  }
};

// ---- a thread block ----

// A warp's pages of the share. Its first lane asks for K's, its second for V's.
template <int D, bool kFp8>
struct Pages {
  using R = Ring<D, kFp8>;
  const Attention& p;
  const RowTile& tile;
  const Share& share;
  uint32_t ring, ready;  // of a slot
  int kv_head, warp, lane;
  int64_t next = 0;  // lane n's is where the warp's page kSlots + n lies in the cache, in bytes

  __device__ int index(int n) const { return warp + kWarps * n; }  // of the warp's page n in the share
  __device__ bool has(int n) const { return index(n) < share.count; }
  __device__ bool asked_for_most(int count) const { return !has(count + kLeft); }
  __device__ int64_t locate(int n) const {
    return has(n) ? page_at(p, tile, share.page + index(n), kv_head, R::kPageBytes) : 0;
  }
  __device__ int slot(int n) const { return index(n % R::kSlots); }
  __device__ uint32_t barrier(int slot) const { return ready + slot * sizeof(uint64_t); }
  // By lanes 0 and 1.
  __device__ void ask(int slot, int64_t at) const {
    const auto* from = static_cast<const uint8_t*>(lane % 2 == 0 ? p.k : p.v);
    mbar_expect(barrier(slot), R::kPageBytes);
    bulk_copy(ring + slot * R::kSlotBytes + lane % 2 * R::kPageBytes, from + at, R::kPageBytes, barrier(slot),
              evict_first_policy());
  }
  // The first of them, two lanes each. newest: the page that is being written until the predecessor has
  // ended.
  __device__ void ask_first(int64_t at, bool newest) const {
    const int n = lane / 2;
    if (n < R::kSlots && has(n) && share.is_newest(index(n)) == newest) ask(slot(n), at);
  }
  // The warp's page n, in shared memory.
  __device__ uint32_t await(int n) const {
    mbar_wait(barrier(slot(n)), n / R::kSlots & 1);
    return ring + slot(n) * R::kSlotBytes;
  }
  // It is in registers, or its loads are under way, which end long before a copy comes: another one takes its
  // place.
  __device__ void replace(int n) {
    if (n > 0 && n % 32 == 0) next = locate(R::kSlots + n + lane);
    const int64_t at = __shfl_sync(0xFFFFFFFFu, next, n % 32);
    if (lane < 2 && has(n + R::kSlots)) ask(slot(n), at);
    if (asked_for_most(n + R::kSlots + 1)) start_successor();
  }
};

template <int D, bool kFp8>
__device__ void attend_pages(Values<D>& values, const Queries<D, kFp8>& queries, Pages<D, kFp8>& pages) {
  const Share& share = pages.share;
  const Places<D, kFp8> places(pages.lane);
#pragma unroll 1
  for (int n = 0; pages.has(n); ++n) {
    const uint32_t at = pages.await(n);
    Page<D, kFp8> page;
    page.load_keys(at, places);
    float x[kKeyTiles][2];
    page.score(x, queries);
    page.load_values(at + Ring<D, kFp8>::kPageBytes, places);
    fence_reads();
    __syncwarp();
    pages.replace(n);
    const int key = (share.page + pages.index(n)) * kPageTokens;
    if (key < share.first || key + kPageTokens - 1 > share.last) {
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
        const int mine = key + key_of<kFp8>(t, pages.lane / 4);
        if (mine < share.first || mine > share.last) x[t][0] = x[t][1] = -INFINITY;
      }
    }
    uint32_t weights[kKeyTiles];
    values.template weigh<kFp8>(x, weights);
    page.add_to(values.acc, weights);
  }
}

// What makes one of the warps' results, relative to the greatest of their maxima: each counts by[i].
struct Joined {
  float by[kWarps];
  Running of = Running::nothing();

  template <int D>
  __device__ Joined(const Results<D>& results, int warps, int head) {
    Running all[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      all[w] = results.stats[min(w, warps - 1)][head];  // the last one again changes no maximum
      of.max = fmaxf(of.max, all[w].max);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      by[w] = w < warps ? exp2_fast(all[w].max - of.max) : 0.0f;
      of.sum = fmaf(all[w].sum, by[w], of.sum);
    }
  }
};

// What turns weighted sums relative to `of` into the row's result: the sink joins.
__device__ inline float last_factor(const Running& of, float sink) {
  const float logit = sink * kLog2E, top = fmaxf(of.max, logit), by = exp2_fast(of.max - top);
  return by * __frcp_rn(fmaf(of.sum, by, exp2_fast(logit - top)));
}

// Joins the warps' results: calls end(head, d, values of d .. d + 3, statistics).
template <int D, class End>
__device__ void join_warps(const Results<D>& results, int warps, int heads, const End& end) {
#pragma unroll
  for (int k = 0; k < (kHeads * D / 4 + kThreads - 1) / kThreads; ++k) {
    const int i = k * kThreads + threadIdx.x, head = i / (D / 4), d = i % (D / 4) * 4;
    if (head >= heads) break;
    const Joined joined(results, warps, head);
    float4 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(&results.values[min(w, warps - 1)][head][d]);
      const float by = joined.by[w];
      sum = {fmaf(v.x, by, sum.x), fmaf(v.y, by, sum.y), fmaf(v.z, by, sum.z), fmaf(v.w, by, sum.w)};
    }
    end(head, d, sum, joined.of);
  }
}

// How a warp joins the thread blocks' results. Of few shares: all 32 dimensions of a part, a lane one. Of
// more: 8 dimensions, four lanes one, each of them every fourth share.
struct Joint {
  static constexpr int kMost = kMostShares / 4;  // shares of a lane
  int shares, groups, dimensions;
  int dimension, first;  // the lane's dimension and first share

  __device__ Joint(int shares, int lane)
      : shares(shares),
        groups(shares > kMost ? 4 : 1),
        dimensions(kSlice / groups),
        dimension(lane % dimensions),
        first(lane / dimensions) {}
  template <class Over>
  __device__ float over_groups(float x, const Over& over) const {
    if (groups > 1) {
      x = over(x, __shfl_xor_sync(0xFFFFFFFFu, x, kSlice / 4));
      x = over(x, __shfl_xor_sync(0xFFFFFFFFu, x, kSlice / 2));
    }
    return x;
  }
  // Of dimension `d` of part `part`, from the inbox.
  template <int D>
  __device__ float join(const Inbox<D>& inbox, int part, int d, float sink) const {
    Running all[kMost];
    float values[kMost];
    Running of = Running::nothing();
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      // The last one again changes no maximum.
      const int at = inbox.at(part, min(first + j * groups, shares - 1));
      all[j] = inbox.stats[at], values[j] = inbox.values[at * kSlice + d];
      of.max = fmaxf(of.max, all[j].max);
    }
    of.max = over_groups(of.max, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      const float by = first + j * groups < shares ? exp2_fast(all[j].max - of.max) : 0.0f;
      of.sum = fmaf(all[j].sum, by, of.sum), sum = fmaf(values[j], by, sum);
    }
    const auto add = [](float a, float b) { return a + b; };
    of.sum = over_groups(of.sum, add), sum = over_groups(sum, add);
    return sum * last_factor(of, sink);
  }
};

template <int D, bool kFp8>
__global__ void __launch_bounds__(kThreads) __maxnreg__(D == 128 ? 255 : 112)
    attend_rows_kernel(const Attention p) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<D, kFp8>*>(memory);
  uint8_t* ring = memory + ring_at<D, kFp8>(static_cast<int>(cluster_size()));
  auto& results = *reinterpret_cast<Results<D>*>(ring);
  using R = Ring<D, kFp8>;
  const int size = static_cast<int>(cluster_size()), rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const RowTile tile = p.tiles[blockIdx.z];
  const Share share(p, tile, rank);
  const int group = p.heads / p.kv_heads, eights = eights_of(p);
  const int kv_head = blockIdx.y / eights, first = blockIdx.y % eights * kHeads,
            heads = min(group - first, kHeads), head = kv_head * group + first;
  const int parts = heads * (D / kSlice);  // of all thread blocks
  const Inbox<D> inbox(&s + 1, size, __popc(size - 1));
  if (threadIdx.x == 0) {
    const int mine = rank < parts ? (parts - rank + size - 1) >> inbox.shift : 0;
    mbar_init(&s.arrived, 1), mbar_init_fence();
    mbar_expect(&s.arrived, mine * share.shares * Inbox<D>::kEntryBytes);
  }
  if (lane == 0) {
    for (int i = 0; i < R::kSlots; ++i) mbar_init(s.ready + warp + kWarps * i, 2);
    mbar_init_fence();
  }
  __syncwarp();
  Pages<D, kFp8> pages{p, tile, share, kept(smem_addr(ring)), kept(smem_addr(s.ready)), kv_head, warp, lane};
  const int64_t at = pages.locate(lane / 2);
  pages.ask_first(at, false);
  if (size > 1) __syncwarp(), cluster_arrive_relaxed();
  pages.next = pages.locate(R::kSlots + lane);
  if (pages.asked_for_most(R::kSlots)) start_successor();
  if (threadIdx.x < heads) s.sinks[threadIdx.x] = p.sinks[head + threadIdx.x];
  if (size > 1) cluster_wait();
  __syncthreads();
  wait_for_predecessor();
  pages.ask_first(at, true);
  Queries<D, kFp8> queries;
  queries.load(p.q + (static_cast<int64_t>(tile.row) * p.heads + head) * D, heads, lane);
  Values<D> values;
  attend_pages(values, queries, pages);
  __syncthreads();  // the ring's copies are all used
  if (warp < share.count) values.leave(results, warp, lane);
  __syncthreads();
  const int warps = min(kWarps, share.count);
  if (size == 1) {
    join_warps(results, warps, heads, [&](int i, int d, const float4& v, const Running& of) {
      const float by = last_factor(of, s.sinks[i]);
      const float x[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
      const auto pair = [&](float lo, float hi) { return p.bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi); };
      auto* out =
          static_cast<uint16_t*>(p.out) + (static_cast<int64_t>(tile.row) * p.heads + head + i) * D + d;
      *reinterpret_cast<uint2*>(out) = {pair(x[0], x[1]), pair(x[2], x[3])};
    });
    return;
  }
  if (share.count > 0) {
    join_warps(results, warps, heads, [&](int i, int d, const float4& v, const Running& of) {
      const int part = i * (D / kSlice) + d / kSlice, to = inbox.owner(part), entry = inbox.at(part, rank);
      const uint32_t arrived = remote_addr(&s.arrived, to);
      remote_store(remote_addr(inbox.values + entry * kSlice + d % kSlice, to), v, arrived);
      if (d % kSlice == 0)
        remote_store(remote_addr(inbox.stats + entry, to), make_float2(of.max, of.sum), arrived);
    });
  }
  if (rank >= parts) return;
  mbar_wait(&s.arrived, 0);
  const Joint joint(share.shares, lane);
#pragma unroll 1
  for (int item = warp;; item += kWarps) {
    const int part = rank + item / joint.groups * size;
    if (part >= parts) break;
    const int i = part / (D / kSlice), d = item % joint.groups * joint.dimensions + joint.dimension;
    const float x = joint.join(inbox, part, d, s.sinks[i]);
    if (joint.first > 0) continue;
    const int64_t to =
        (static_cast<int64_t>(tile.row) * p.heads + head + i) * D + part % (D / kSlice) * kSlice + d;
    if (p.bf16) {
      static_cast<__nv_bfloat16*>(p.out)[to] = __float2bfloat16_rn(x);
    } else {
      static_cast<__half*>(p.out)[to] = __float2half_rn(x);
    }
  }
}

template <int D, bool kFp8>
Status run(const Attention& p, int shares, cudaStream_t stream) {
  const auto kernel = attend_rows_kernel<D, kFp8>;
  using R = Ring<D, kFp8>;
  const auto shared = [](int size, int slots) {
    return ring_at<D, kFp8>(size) + std::max<int>(slots * R::kSlotBytes, sizeof(Results<D>));
  };
  // Of fewer than the most, shares have few pages.
  constexpr int kMostSlots = kWarps * R::kSlots;
  const int size = static_cast<int>(std::bit_ceil<unsigned>(shares)),
            slots = shares < kMostShares ? kSharePages : kMostSlots;
  static OncePerDevice prepared;
  const Status status = prepared.run([&] {
    return set_attributes(kernel, {.max_shared = static_cast<size_t>(shared(kMostShares, kMostSlots)),
                                   .prefer_shared = true,
                                   .large_clusters = true});
  });
  if (!status.ok()) return status;
  return launch_clusters(size, kernel, dim3(size, p.kv_heads * eights_of(p), p.tile_count), dim3(kThreads),
                         shared(size, slots), stream, p);
}

}  // namespace

Status attend_decode(const Attention& p, cudaStream_t stream) {
  // Pages that a window may touch, whatever its position.
  const int most = p.window > 0 ? shares_of((p.window + kPageTokens - 2) / kPageTokens + 1) : kMostShares;
  return for_shape(p, [&](auto d, auto fp8) { return run<d, fp8>(p, std::min(p.shares, most), stream); });
}

}  // namespace moesaic::cuda
