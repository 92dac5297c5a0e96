// Matrix product for 1 to 8 tokens, bound by the bytes of the weights.
//
//   tile     16 rows (one MMA tile of a unit of matrix.h)
//   cluster  two thread blocks on two multiprocessors share a tile: cluster i computes tiles i, i + clusters,
//   ... warp     16 multiplying warps, 8 in each block: warp w sums slice w of the contraction of every tile.
//   It has
//            its own ring of chunks in shared memory, which bulk copies fill and it refills itself
//   ninth warp of a block: adds the slices of every other tile, in order, and finishes it; sums travel
//   through
//            the cluster's shared memory
//
// No warp waits for another but for room in the sums. The first chunks are on their way before the kernel
// waits for its predecessor: what launch and norm take is hidden behind them. Bytes: the weights once;
// activations once a block, from L2. The order of a token's sums is the same for 1 to 8 tokens.
//
// Floor: bytes / bandwidth. QKV of gpt-oss in BF16, 29.5 MB: 6.7 us on an H200.
#include <algorithm>

#include "backend/cuda/norm.cuh"
#include "backend/cuda/sm90a/dense_decode.h"
#include "backend/cuda/sm90a/ptx.cuh"
#include "backend/cuda/tile.cuh"

namespace moesaic::cuda::sm90a {
namespace {

constexpr int kRanks = 2, kWarps = 8, kParts = kRanks * kWarps;
constexpr int kMultipliers = kWarps * 32, kThreads = kMultipliers + 32;
constexpr int kGroup = 16;  // rows of a tile
constexpr int kTokens = 8;
constexpr int kBuffers = 2;            // of sums, in each block
constexpr int kRowPad = 64;            // bytes: two tokens' rows in different banks
constexpr int kRingBytes = 96 * 1024;  // of a block
constexpr int kMostDepth = 8;
constexpr int kMostDynamic = 160 * 1024;
// More than half of a multiprocessor's memory: two blocks of a launch that starts early would otherwise share
// one while others stay empty (up to four were seen). What is left is enough for moe_decode of one token.
constexpr int kLeastDynamic = 114 * 1024;
constexpr int kClusters = 66;

__host__ __device__ inline int part_start(int blocks, int part) { return blocks * part / kParts; }

template <class Source>
struct Chunk {
  static constexpr int kHalf = Source::kBlockBytes / 2;  // of a block: one MMA tile's
  static constexpr int kBlocks = Source::kScaled ? 3 : 2;
  static constexpr int kScales = (kBlocks * Source::kScaleBytes + 127) / 128 * 128;
  static constexpr int kBytes = kBlocks * kHalf + kScales;
  static constexpr int kDepth =
      kRingBytes / kWarps / kBytes < kMostDepth ? kRingBytes / kWarps / kBytes : kMostDepth;
};

// ---- a warp's ring; every method is called by the whole warp ----
template <class Source>
class Ring {
  using C = Chunk<Source>;

 public:
  __device__ Ring(const GemmParams& p, uint8_t* memory, uint64_t* full, int cluster, int first, int end,
                  int lane)
      : p_(p), memory_(memory), full_(full), first_(first), end_(end), lane_(lane), tile_(cluster) {
    if (lane == 0) {
      for (int i = 0; i < C::kDepth; ++i) mbar_init(full + i, 1);
      mbar_init_fence();
    }
    __syncwarp();
    open();
    for (int i = 0; i < C::kDepth; ++i) request(i);
  }
  __device__ const uint8_t* wait() const {
    mbar_wait(full_ + stage_, phase_);
    return memory_ + stage_ * C::kBytes;
  }
  // The chunk that wait() gave has been read.
  __device__ void next() {
    __syncwarp();
    request(stage_);
    if (++stage_ == C::kDepth) stage_ = 0, phase_ ^= 1;
  }

 private:
  __device__ void open() {
    const int64_t at = static_cast<int64_t>(tile_ / 2) * p_.blocks + first_;
    data_ = p_.data + at * Source::kBlockBytes + tile_ % 2 * C::kHalf;
    scales_ = p_.scales + at * Source::kScaleBytes;
    left_ = end_ - first_;
  }
  __device__ void request(int stage) {
    if (tile_ >= 2 * p_.units || first_ == end_) return;
    const int count = min(C::kBlocks, left_);
    uint8_t* to = memory_ + stage * C::kBytes;
    if (lane_ == 0) {
      mbar_expect(full_ + stage, count * (C::kHalf + Source::kScaleBytes));
      for (int i = 0; i < count; ++i)
        bulk_copy(to + i * C::kHalf, data_ + i * Source::kBlockBytes, C::kHalf, full_ + stage, policy_);
      if (Source::kScaled)
        bulk_copy(to + C::kBlocks * C::kHalf, scales_, count * Source::kScaleBytes, full_ + stage, policy_);
    }
    data_ += C::kBlocks * Source::kBlockBytes;
    scales_ += C::kBlocks * Source::kScaleBytes;
    left_ -= count;
    if (left_ == 0) tile_ += kClusters, open();
  }

  const GemmParams& p_;
  uint8_t* memory_;
  uint64_t* full_;
  const uint64_t policy_ = evict_first_policy();
  int first_, end_, lane_;
  // The next request.
  int tile_, left_;
  const uint8_t *data_, *scales_;
  int stage_ = 0, phase_ = 0;
};

// ---- multiplying ----

// One MMA tile's half of a block in shared memory.
__device__ inline void read(PlainSource& s, const uint8_t* data, const uint8_t*, int, int lane) {
  s.q[0] = *reinterpret_cast<const uint4*>(data + lane * 16);
  s.q[1] = *reinterpret_cast<const uint4*>(data + 512 + lane * 16);
}
__device__ inline void read(Mxfp8Source& s, const uint8_t* data, const uint8_t* scales, int m, int lane) {
  s.q[0] = *reinterpret_cast<const uint4*>(data + lane * 16);
  s.s = *reinterpret_cast<const uint16_t*>(scales + lane / 4 * 4 + 2 * m);
}
__device__ inline void read(Q8Source& s, const uint8_t* data, const uint8_t* scales, int m, int lane) {
  s.q[0] = *reinterpret_cast<const uint4*>(data + lane * 16);
  s.s.x = *reinterpret_cast<const uint32_t*>(scales + lane / 4 * 8 + 4 * m);
}

template <class Source>
__device__ void add_block(float (&sum)[2][4], const Source& w, const uint4& x) {
  const Fragment f0 = w.fragment(0, 0), f1 = w.fragment(0, 1);
  if constexpr (Source::kScaled) {
    float d[4] = {};
    mma<Source::kBf16>(d, f0, x.x, x.y);
    mma<Source::kBf16>(d, f1, x.z, x.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[0][i] = fmaf(d[i], w.scale(0, i / 2), sum[0][i]);
  } else {
    mma<Source::kBf16>(sum[0], f0, x.x, x.y);
    mma<Source::kBf16>(sum[1], f1, x.z, x.w);
  }
}

// This warp's slice of `blocks` blocks of one tile; x: this lane's token's row at the slice, from its columns
// of the block on, or null.
template <class Source>
__device__ void multiply(Ring<Source>& ring, int m, int blocks, const uint8_t* x, int lane, float (&out)[4]) {
  using C = Chunk<Source>;
  float sum[2][4] = {};
  for (int b = 0; b < blocks; b += C::kBlocks, x += C::kBlocks * kBlock * 2) {
    const uint8_t* chunk = ring.wait();
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) {
      if (b + i >= blocks) break;
      Source w;
      read(w, chunk + i * C::kHalf, chunk + C::kBlocks * C::kHalf + i * Source::kScaleBytes, m, lane);
      add_block(sum, w, *reinterpret_cast<const uint4*>(x + i * kBlock * 2));
    }
    ring.next();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = sum[0][i] + sum[1][i];
}

// ---- activations, by the multiplying warps ----

__device__ inline void sync_multipliers() { asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory"); }

// Columns [first, end) of all tokens.
__device__ void copy_rows(const GemmParams& p, uint8_t* rows, int row_bytes, int first, int end) {
  const int vectors = (end - first) / 8;
  for (int i = threadIdx.x; i < p.tokens * vectors; i += kMultipliers) {
    const int row = i / vectors, at = i % vectors;
    *reinterpret_cast<uint4*>(rows + row * row_bytes + at * 16) =
        reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(row) * p.cols + first)[at];
  }
}

// The same of norm(x). A row's sum has one order whatever the number of tokens.
constexpr int kNormLoads = 3;  // float4 a thread: hidden up to 3,072
struct RowNorm {
  float4 weight[kNormLoads];
  __device__ explicit RowNorm(const Norm& p) {
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      const int i = j * kMultipliers + threadIdx.x;
      if (i < p.hidden / 4) weight[j] = __ldg(reinterpret_cast<const float4*>(p.weight) + i);
    }
  }
  __device__ void run(const Norm& p, float* scratch, uint8_t* rows, int row_bytes, int first, int end) const {
    const int warp = threadIdx.x / 32;
    for (int row = 0; row < p.rows; ++row, scratch += kWarps) {
      const int from = p.row_map != nullptr ? p.row_map[row] : row;
      const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(from) * p.hidden);
      float4 v[kNormLoads];
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kNormLoads; ++j) {
        const int i = j * kMultipliers + threadIdx.x;
        v[j] = i < p.hidden / 4 ? x[i] : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int j = 0; j < kNormLoads; ++j)
        squares =
            fmaf(v[j].x, v[j].x, fmaf(v[j].y, v[j].y, fmaf(v[j].z, v[j].z, fmaf(v[j].w, v[j].w, squares))));
      squares = warp_sum(squares);
      if (threadIdx.x % 32 == 0) scratch[warp] = squares;
      sync_multipliers();
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += scratch[w];
      const float mean = sum / static_cast<float>(p.hidden);
      if (!(mean <= 3.0e38f) && threadIdx.x == 0 && blockIdx.x == 0) atomicCAS(p.fault, 0, p.code);
      const float scale = rsqrtf(mean + p.eps);
#pragma unroll
      for (int j = 0; j < kNormLoads; ++j) {
        const int i = j * kMultipliers + threadIdx.x;
        if (4 * i < first || 4 * i >= end) continue;
        const float4 a = v[j], w = weight[j];
        *reinterpret_cast<uint2*>(rows + row * row_bytes + (4 * i - first) * 2) = half_words(
            {a.x * scale * w.x, a.y * scale * w.y, a.z * scale * w.z, a.w * scale * w.w}, p.factor, p.bf16);
      }
    }
  }
};

// ---- sums ----

struct Shared {
  uint64_t full[kWarps][kMostDepth];
  uint64_t summed[kBuffers], empty[kBuffers];  // this block's sums of a tile: all there; read
  uint64_t received;                           // the other block's share of a tile
  float4 share[32];
  float scratch[kTokens][kWarps];
};
// The n-th tile of a cluster.
struct Place {
  int n = 0;
  __device__ int owner() const { return n % kRanks; }
  __device__ int buffer() const { return n % kBuffers; }
  __device__ int phase() const { return n / kBuffers & 1; }
};

__device__ void expect_share(Shared& s, int tokens) {
  mbar_expect(&s.received, min(tokens, 4) * 8 * static_cast<int>(sizeof(float4)));
}

// A multiplying warp's share, to sums [kBuffers][kWarps][tokens][kGroup].
__device__ void hand_over(Shared& s, float* sums, const Place& place, int warp, int tokens, int lane,
                          const float (&v)[4]) {
  const int g = lane / 4, c = lane % 4;
  float* to = sums + (place.buffer() * kWarps + warp) * tokens * kGroup;
  mbar_wait(&s.empty[place.buffer()], place.phase() ^ 1);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = 2 * c + i % 2;
    if (token < tokens) to[token * kGroup + i / 2 * 8 + g] = v[i];
  }
  __syncwarp();
  if (lane == 0) mbar_arrive(&s.summed[place.buffer()]);
}

// Tokens t and t + 4 (t = lane / 8), rows r and r + 8 (r = lane % 8) of a tile: t r, t r + 8, t + 4 r, t + 4
// r + 8.
__device__ float4 add_warps(const float* sums, int tokens, int lane) {
  float v[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = lane / 8 + i / 2 * 4, row = lane % 8 + i % 2 * 8;
    if (token >= tokens) break;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v[i] += sums[(w * tokens + token) * kGroup + row];
  }
  return {v[0], v[1], v[2], v[3]};
}

// The ninth warp. The blocks take turns in finishing a tile; the other sends its share. One place for it is
// enough: a block sends for tile n only after it has finished n - 1, for which the other sent its share after
// it had finished n - 2, the last to use that place.
template <class Epilogue>
__device__ void finish_tiles(Shared& s, const float* sums, const GemmParams& p, const Epilogue& epilogue,
                             int cluster, int rank, int lane) {
  const int pair = lane % 8, token = lane / 8, other = rank ^ 1;
  const bool mine = token < p.tokens, both = token + 4 < p.tokens;
  int received = 0;
  Place place;
  for (int tile = cluster; tile < 2 * p.units; tile += kClusters, ++place.n) {
    const int unit = tile / 2, at = tile % 2 * 8 + pair;
    decltype(prepare(epilogue, 0, 0, 0, 0)) first{}, second{};
    if (place.owner() == rank) {
      if (mine) first = prepare(epilogue, unit, at, token, 0);
      if (both) second = prepare(epilogue, unit, at, token + 4, 0);
    }
    mbar_wait(&s.summed[place.buffer()], place.phase());
    float4 v = add_warps(sums + place.buffer() * kWarps * p.tokens * kGroup, p.tokens, lane);
    __syncwarp();
    if (lane == 0) mbar_arrive(&s.empty[place.buffer()]);
    if (place.owner() != rank) {
      if (mine) remote_store(remote_addr(&s.share[lane], other), v, remote_addr(&s.received, other));
      continue;
    }
    mbar_wait(&s.received, received);
    received ^= 1;
    const float4 u = s.share[lane];
    v = {v.x + u.x, v.y + u.y, v.z + u.z, v.w + u.w};
    __syncwarp();
    if (lane == 0) expect_share(s, p.tokens);
    if (mine) finish(epilogue, first, unit, at, token, v.x * p.factor, v.y * p.factor);
    if (both) finish(epilogue, second, unit, at, token + 4, v.z * p.factor, v.w * p.factor);
  }
}

__device__ void init_shared(Shared& s, int tokens) {
  for (int b = 0; b < kBuffers; ++b) mbar_init(&s.summed[b], kWarps), mbar_init(&s.empty[b], 1);
  mbar_init(&s.received, 1);
  mbar_init_fence();
  expect_share(s, tokens);
}

template <class Source, class Epilogue>
__global__ void __cluster_dims__(kRanks, 1, 1) __launch_bounds__(kThreads, 4)
    dense_decode_kernel(const GemmParams p, const Norm norm, const Epilogue epilogue) {
  using C = Chunk<Source>;
  extern __shared__ __align__(128) uint8_t dynamic[];  // rings, rows, sums
  __shared__ Shared s;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cluster = blockIdx.x / kRanks, rank = blockIdx.x % kRanks;
  const int first = part_start(p.blocks, rank * kWarps) * kBlock;
  const int end = part_start(p.blocks, (rank + 1) * kWarps) * kBlock;
  const int row_bytes = (p.blocks + 1) / 2 * kBlock * 2 + kRowPad;
  uint8_t* rows = dynamic + kWarps * C::kDepth * C::kBytes;
  auto* sums = reinterpret_cast<float*>(rows + p.tokens * row_bytes);
  if (warp == kWarps) {
    if (lane == 0) init_shared(s, p.tokens);
    __syncwarp();
    cluster_arrive();
    start_successor();
    wait_for_predecessor();
    cluster_wait();
    finish_tiles(s, sums, p, epilogue, cluster, rank, lane);
  } else {
    const int part = rank * kWarps + warp, begin = part_start(p.blocks, part);
    const int blocks = part_start(p.blocks, part + 1) - begin;
    Ring<Source> ring(p, dynamic + warp * C::kDepth * C::kBytes, s.full[warp], cluster, begin, begin + blocks,
                      lane);
    cluster_arrive();
    if (norm.x != nullptr) {
      const RowNorm row_norm(norm);
      start_successor();
      wait_for_predecessor();
      row_norm.run(norm, &s.scratch[0][0], rows, row_bytes, first, end);
    } else {
      start_successor();
      wait_for_predecessor();
      copy_rows(p, rows, row_bytes, first, end);
    }
    sync_multipliers();
    cluster_wait();
    const int g = lane / 4, c = lane % 4;
    // Columns of the MMA beyond the tokens are never looked at.
    const uint8_t* x = rows + min(g, p.tokens - 1) * row_bytes + (begin * kBlock - first) * 2 + c * 16;
    Place place;
    for (int tile = cluster; tile < 2 * p.units; tile += kClusters, ++place.n) {
      float sum[4];
      multiply(ring, tile % 2, blocks, x, lane, sum);
      hand_over(s, sums, place, warp, p.tokens, lane, sum);
    }
  }
  // Nobody leaves while another may still write to it.
  cluster_arrive();
  cluster_wait();
}

// ---- launcher ----

// Besides the rings.
size_t shared_rest(int64_t cols, int tokens) {
  const size_t blocks = (cols / kBlock + 1) / 2;
  return tokens * (blocks * kBlock * 2 + kRowPad) + sizeof(float) * kBuffers * kWarps * tokens * kGroup;
}

template <class Source, class Epilogue>
Status run(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& epilogue,
           cudaStream_t stream) {
  using C = Chunk<Source>;
  const auto kernel = dense_decode_kernel<Source, Epilogue>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostDynamic);
  if (prepared != cudaSuccess) return check(prepared, "dense decode");
  const GemmParams p{.data = w.data.as<uint8_t>(),
                     .scales = w.scales.as<uint8_t>(),
                     .units = static_cast<int>(w.units),
                     .blocks = static_cast<int>(w.cols / kBlock),
                     .x = static_cast<const uint16_t*>(x.x),
                     .rows = nullptr,
                     .cols = static_cast<int>(w.cols),
                     .tokens = x.tokens,
                     .factor = x.factor * Source::kFactor,
                     .jobs = nullptr,
                     .job_count = nullptr};
  const size_t shared = kWarps * C::kDepth * C::kBytes + shared_rest(w.cols, x.tokens);
  return launch(kernel, dim3(kRanks * kClusters), dim3(kThreads), std::max<size_t>(shared, kLeastDynamic),
                stream, p, norm, epilogue);
}

template <class Epilogue>
Status run_kind(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& out,
                cudaStream_t stream) {
  switch (w.kind) {
    case Kind::kBF16:
      return run<Bf16Source>(w, x, norm, out, stream);
    case Kind::kF16:
      return run<F16Source>(w, x, norm, out, stream);
    case Kind::kQ8_0:
      return run<Q8Source>(w, x, norm, out, stream);
    case Kind::kMxfp8:
      return run<Mxfp8Source>(w, x, norm, out, stream);
    case Kind::kMxfp4:
      break;
  }
  return Status(StatusCode::kInternal, "dense decode: the experts' format");
}

template <class Epilogue>
Status run_normed(const Matrix& w, const Norm& norm, const Epilogue& out, cudaStream_t stream) {
  return run_kind(w, {.factor = 1.0f / norm.factor, .tokens = norm.rows}, norm, out, stream);
}

}  // namespace

bool dense_decode_fits(const Matrix& w, int tokens) {
  return w.kind != Kind::kMxfp4 && w.experts == 1 && tokens <= kTokens &&
         kRingBytes + shared_rest(w.cols, tokens) <= kMostDynamic;
}
bool dense_decode_norms(const Norm& norm) {
  return norm.expert_out == nullptr && norm.hidden <= 4 * kMultipliers * kNormLoads;
}

Status dense_decode(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream) {
  return run_kind(w, x, Norm{}, out, stream);
}
Status dense_decode(const Matrix& w, const Norm& norm, const Store& out, cudaStream_t stream) {
  return run_normed(w, norm, out, stream);
}
Status dense_decode(const Matrix& w, const Norm& norm, const Qkv& out, cudaStream_t stream) {
  return run_normed(w, norm, out, stream);
}

}  // namespace moesaic::cuda::sm90a
