// Matrix product for 1 to 8 tokens, bound by the bytes of the weights.
//
//   tile    16 rows (one MMA tile of a unit of matrix.h); thread block b computes tiles b, b + grid, ...
//   warp w  slice w of the contraction (tile.cuh) of every tile: its own ring of chunks in shared memory,
//   which
//           bulk copies fill and it refills itself, so that warps meet only where a tile's slices are added
//   grid    a block a multiprocessor
//
// The first chunks are on their way before the kernel waits for its predecessor: what the launch and the norm
// take is hidden behind them. Bytes: the weights once; activations once a block, from L2.
//
// Floor: bytes / bandwidth. QKV of gpt-oss in BF16, 29.5 MB: 6.7 us on an H200.
#include <algorithm>

#include "backend/cuda/norm.cuh"
#include "backend/cuda/sm90a/dense_decode.h"
#include "backend/cuda/sm90a/ptx.cuh"
#include "backend/cuda/tile.cuh"

namespace moesaic::cuda::sm90a {
namespace {

constexpr int kWarps = kSlices, kThreads = kWarps * 32;
constexpr int kTokens = 8;
constexpr int kRowPad = 64;               // bytes: two tokens' rows in different banks
constexpr int kRingBytes = 72 * 1024;     // of a block: leaves room for the next kernel's
constexpr int kMostDynamic = 200 * 1024;  // 227 KB less what is static
constexpr int kGrid = 132;
constexpr int kGroup = 16;  // rows of a tile

template <class Source>
struct Chunk {
  static constexpr int kHalf = Source::kBlockBytes / 2;  // of a block: one MMA tile's
  static constexpr int kBlocks = 2048 / kHalf;
  static constexpr int kScales = kBlocks * Source::kScaleBytes;
  static constexpr int kBytes = kBlocks * kHalf + kScales;
  static constexpr int kDepth = kRingBytes / kWarps / kBytes;
};

// A warp's ring. Every method is called by the whole warp.
template <class Source>
class Ring {
  using C = Chunk<Source>;

 public:
  __device__ Ring(const GemmParams& p, uint8_t* memory, uint64_t* full, int warp, int lane)
      : p_(p),
        memory_(memory),
        full_(full),
        lane_(lane),
        first_(slice_start(p.blocks, warp)),
        blocks_(slice_start(p.blocks, warp + 1) - first_),
        tile_(blockIdx.x) {
    if (lane == 0) {
      for (int i = 0; i < C::kDepth; ++i) mbar_init(full + i, 1);
      mbar_init_fence();
    }
    __syncwarp();
    for (int i = 0; i < C::kDepth; ++i) request(i);
  }
  __device__ int blocks() const { return blocks_; }
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
  __device__ void request(int stage) {
    if (tile_ >= 2 * p_.units || blocks_ == 0) return;
    const int count = min(C::kBlocks, blocks_ - block_);
    const int64_t at = static_cast<int64_t>(tile_ / 2) * p_.blocks + first_ + block_;
    uint8_t* to = memory_ + stage * C::kBytes;
    if (lane_ == 0) mbar_expect(full_ + stage, count * (C::kHalf + Source::kScaleBytes));
    __syncwarp();
    if (lane_ < count)
      bulk_copy(to + lane_ * C::kHalf, p_.data + (at + lane_) * Source::kBlockBytes + tile_ % 2 * C::kHalf,
                C::kHalf, full_ + stage, policy_);
    if (Source::kScaleBytes > 0 && lane_ == C::kBlocks)
      bulk_copy(to + C::kBlocks * C::kHalf, p_.scales + at * Source::kScaleBytes, count * Source::kScaleBytes,
                full_ + stage, policy_);
    block_ += count;
    if (block_ == blocks_) block_ = 0, tile_ += gridDim.x;
  }

  const GemmParams& p_;
  uint8_t* memory_;
  uint64_t* full_;
  const uint64_t policy_ = evict_first_policy();
  int lane_, first_, blocks_;
  int tile_, block_ = 0;  // of the next request
  int stage_ = 0, phase_ = 0;
};

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

// Slice of one tile; x: this lane's token's row, from its columns of the slice's first block on, or null.
template <class Source>
__device__ void multiply(Ring<Source>& ring, int m, const uint8_t* x, int lane, float (&sum)[4]) {
  using C = Chunk<Source>;
  Sums<Source, 1, 1> sums;
  for (int b = 0; b < ring.blocks(); b += C::kBlocks) {
    const uint8_t* chunk = ring.wait();
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) {
      if (b + i >= ring.blocks()) break;
      Source w;
      read(w, chunk + i * C::kHalf, chunk + C::kBlocks * C::kHalf + i * Source::kScaleBytes, m, lane);
      const uint4 v[1] = {x != nullptr ? *reinterpret_cast<const uint4*>(x + (b + i) * kBlock * 2)
                                       : make_uint4(0, 0, 0, 0)};
      sums.add(w, v);
    }
    ring.next();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = sums.v[0][0][i];
}

// Activations of all tokens to shared memory, by the whole block.
__device__ void copy_rows(const GemmParams& p, uint8_t* rows, int row_bytes) {
  const int vectors = p.cols / 8;
  for (int i = threadIdx.x; i < p.tokens * vectors; i += kThreads) {
    const int row = i / vectors, at = i % vectors;
    *reinterpret_cast<uint4*>(rows + row * row_bytes + at * 16) =
        reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(row) * p.cols)[at];
  }
}

template <class Source, class Epilogue>
__global__ void __launch_bounds__(kThreads)
    dense_decode_kernel(const GemmParams p, const Norm norm, const Epilogue epilogue) {
  using C = Chunk<Source>;
  extern __shared__ __align__(128) uint8_t shared[];  // rings, activations
  __shared__ uint64_t full[kWarps][C::kDepth];
  __shared__ float partial[2][kWarps][kTokens][kGroup];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int row_bytes = p.cols * 2 + kRowPad;
  uint8_t* rows = shared + kWarps * C::kDepth * C::kBytes;
  Ring<Source> ring(p, shared + warp * C::kDepth * C::kBytes, full[warp], warp, lane);
  start_successor();
  wait_for_predecessor();
  if (norm.x != nullptr) {
    if (warp < p.tokens)
      norm_row_by_warp(norm, norm.row_map != nullptr ? norm.row_map[warp] : warp, lane,
                       reinterpret_cast<uint2*>(rows + warp * row_bytes), blockIdx.x == 0);
  } else {
    copy_rows(p, rows, row_bytes);
  }
  __syncthreads();
  const uint8_t* x =
      g < p.tokens ? rows + g * row_bytes + slice_start(p.blocks, warp) * kBlock * 2 + c * 16 : nullptr;
  int buffer = 0;
  for (int tile = blockIdx.x; tile < 2 * p.units; tile += gridDim.x, buffer ^= 1) {
    float sum[4];
    multiply(ring, tile % 2, x, lane, sum);
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[buffer][warp][2 * c + i % 2][i / 2 * 8 + g] = sum[i];
    __syncthreads();
    if (threadIdx.x >= p.tokens * kGroup / 2) continue;
    const int row = threadIdx.x % 8, token = threadIdx.x / 8;
    float v0 = 0, v1 = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      v0 += partial[buffer][w][token][row], v1 += partial[buffer][w][token][row + 8];
    finish(epilogue, tile / 2, tile % 2 * 8 + row, token, 0, v0 * p.factor, v1 * p.factor);
  }
}

template <class Source>
size_t shared_bytes(int64_t cols, int tokens) {
  return static_cast<size_t>(kWarps) * Chunk<Source>::kDepth * Chunk<Source>::kBytes +
         static_cast<size_t>(tokens) * (cols * 2 + kRowPad);
}

template <class Source, class Epilogue>
Status run(const Matrix& w, const Activations& x, const Norm& norm, const Epilogue& epilogue,
           cudaStream_t stream) {
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
  const auto grid = static_cast<unsigned>(std::min<int64_t>(2 * w.units, kGrid));
  return launch(kernel, dim3(grid), dim3(kThreads), shared_bytes<Source>(w.cols, x.tokens), stream, p, norm,
                epilogue);
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
         shared_bytes<Bf16Source>(w.cols, tokens) <= kMostDynamic;
}
bool dense_decode_norms(const Norm& norm) {
  return norm.expert_out == nullptr && norm.hidden <= 4 * kNormThreads * kWarpNormLoads;
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
