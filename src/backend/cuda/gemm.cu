#include "backend/cuda/dequant.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRowStride = kUnit + 1;  // floats of a token's row in shared memory

struct Params {
  const uint8_t* data;
  const uint8_t* scales;
  int units, blocks;
  const uint16_t* x;
  const int32_t* rows;
  int cols, tokens;
  float factor;
  const Job* jobs;
  const int* job_count;
};

template <bool kBf16>
__device__ inline void mma(float (&d)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.a[0]), "r"(a.a[1]), "r"(a.a[2]), "r"(a.a[3]), "r"(b0), "r"(b1));
  }
}

// ---- epilogues: (unit, pair) names the rows 16 m + g and 16 m + 8 + g of the unit, pair = 8 m + g ----

__device__ inline void finish(const Store& e, int unit, int pair, int slot, int expert, float v0, float v1) {
  const int r0 = unit * kUnit + pair / 8 * 16 + pair % 8, r1 = r0 + 8;
  const float* bias = e.bias != nullptr ? e.bias + static_cast<int64_t>(expert) * e.rows : nullptr;
  float* out = e.out + slot * e.stride;
  if (r0 < e.rows) out[r0] = (e.add ? out[r0] : 0.0f) + (v0 + (bias != nullptr ? bias[r0] : 0.0f));
  if (r1 < e.rows) out[r1] = (e.add ? out[r1] : 0.0f) + (v1 + (bias != nullptr ? bias[r1] : 0.0f));
}

__device__ inline void finish(const SwiGlu& e, int unit, int pair, int slot, int expert, float v0, float v1) {
  const int i = unit * (kUnit / 2) + pair;
  if (i >= e.intermediate) return;
  const int64_t bias = static_cast<int64_t>(expert) * e.intermediate + i;
  const float gate = fminf(v0 + e.gate_bias[bias], e.limit);
  const float up = fminf(fmaxf(v1 + e.up_bias[bias], -e.limit), e.limit);
  const float y = gate / (1.0f + __expf(-e.alpha * gate)) * (up + 1.0f);
  const int64_t at = static_cast<int64_t>(slot) * e.intermediate + i;
  if (e.bf16) {
    static_cast<__nv_bfloat16*>(e.out)[at] = __float2bfloat16_rn(y);
  } else {
    static_cast<__half*>(e.out)[at] = __float2half_rn(y);
  }
}

__device__ inline void finish(const Qkv& e, int unit, int pair, int row, int, float v0, float v1) {
  const int per_head = e.head_dim / kUnit, half = e.head_dim / 2;
  const int head = unit / per_head, d = unit % per_head * (kUnit / 2) + pair;
  v0 += e.bias[head * e.head_dim + d];
  v1 += e.bias[head * e.head_dim + d + half];
  if (head < e.heads + e.kv_heads) {
    const float2 r = e.rotation[static_cast<int64_t>(row) * half + d];
    const float a = v0 * r.x - v1 * r.y;
    v1 = v1 * r.x + v0 * r.y;
    v0 = a;
  }
  if (head < e.heads) {
    __nv_bfloat16* q = e.q + (static_cast<int64_t>(row) * e.heads + head) * e.head_dim + d;
    q[0] = __float2bfloat16_rn(v0), q[half] = __float2bfloat16_rn(v1);
    return;
  }
  const int kv_head = (head - e.heads) % e.kv_heads, slot = e.slots[row] % 32;
  const int64_t page = (static_cast<int64_t>(e.slots[row] / 32) * e.kv_heads + kv_head) * 32 * e.head_dim;
  if (head < e.heads + e.kv_heads) {
    __nv_bfloat16* k = e.k + page + slot * e.head_dim + d;
    k[0] = __float2bfloat16_rn(v0), k[half] = __float2bfloat16_rn(v1);
  } else {
    __nv_bfloat16* v = e.v + page + d * 32 + slot;
    v[0] = __float2bfloat16_rn(v0), v[half * 32] = __float2bfloat16_rn(v1);
  }
}

// ---- the contraction ----

template <class Source>
constexpr int kAhead = Source::kBlockBytes >= 2048 ? 2 : 4;  // blocks in flight: 2 to 4 KB a warp

template <class Source>
struct Stream {
  const uint8_t* data;
  const uint8_t* scales;
  int end;
  __device__ void load(Source (&s)[kAhead<Source>], int block, int lane) const {
#pragma unroll
    for (int i = 0; i < kAhead<Source>; ++i) {
      const int64_t b = min(block + i, end - 1);  // past the end: loaded again, not used
      s[i].load(data + b * Source::kBlockBytes, scales + b * Source::kScaleBytes, lane);
    }
  }
};

template <class Source, int kTiles>
struct Sums {
  float v[2][kTiles][4] = {};

  // One block: w times the tokens' 32 activations each, x[t] being columns 8 c .. 8 c + 7 of token g of tile
  // t.
  __device__ void add(const Source& w, const uint4 (&x)[kTiles]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const Fragment f0 = w.fragment(m, 0), f1 = w.fragment(m, 1);
      const float s0 = w.scale(m, 0), s1 = w.scale(m, 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (Source::kScaled) {
          float d[4] = {};
          mma<Source::kBf16>(d, f0, x[t].x, x[t].y);
          mma<Source::kBf16>(d, f1, x[t].z, x[t].w);
          v[m][t][0] = fmaf(d[0], s0, v[m][t][0]);
          v[m][t][1] = fmaf(d[1], s0, v[m][t][1]);
          v[m][t][2] = fmaf(d[2], s1, v[m][t][2]);
          v[m][t][3] = fmaf(d[3], s1, v[m][t][3]);
        } else {
          mma<Source::kBf16>(v[m][t], f0, x[t].x, x[t].y);
          mma<Source::kBf16>(v[m][t], f1, x[t].z, x[t].w);
        }
      }
    }
  }

  // To shared memory, [token][row].
  __device__ void store(float* out, int g, int c) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          out[(t * 8 + 2 * c + i % 2) * kRowStride + 16 * m + i / 2 * 8 + g] = v[m][t][i];
      }
    }
  }
};

template <class Source, int kTiles, class Epilogue>
__global__ void __launch_bounds__(kWarps * 32) gemm_kernel(const Params p, const Epilogue epilogue) {
  extern __shared__ float partial[];  // [kWarps][8 * kTiles][kRowStride]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int unit = blockIdx.x;
  const int first_block = p.blocks * warp / kWarps, end = p.blocks * (warp + 1) / kWarps;
  Stream<Source> stream{p.data, p.scales, end};
  Source current[kAhead<Source>];
  Job job{0, static_cast<int>(blockIdx.y) * 8 * kTiles, 0, 0};
  const auto open = [&](int expert) {
    const int64_t index = (static_cast<int64_t>(expert) * p.units + unit) * p.blocks;
    stream.data += index * Source::kBlockBytes;
    stream.scales += index * Source::kScaleBytes;
    if (first_block < end) stream.load(current, first_block, lane);
  };
  if (p.jobs == nullptr) {
    open(0);  // the weights do not depend on the kernel before
    wait_for_predecessor();
    job.count = min(8 * kTiles, p.tokens - job.first);
  } else {
    wait_for_predecessor();
    if (static_cast<int>(blockIdx.y) >= *p.job_count) return;
    job = p.jobs[blockIdx.y];
    open(job.expert);
  }
  start_successor();

  const uint16_t* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int token = t * 8 + g, slot = job.first + token;
    x[t] = token < job.count
               ? p.x + static_cast<int64_t>(p.rows != nullptr ? p.rows[slot] : slot) * p.cols + 8 * c
               : nullptr;
  }
  Sums<Source, kTiles> sums;
  for (int b = first_block; b < end; b += kAhead<Source>) {
    Source next[kAhead<Source>];
    if (b + kAhead<Source> < end) stream.load(next, b + kAhead<Source>, lane);
#pragma unroll
    for (int i = 0; i < kAhead<Source>; ++i) {
      if (b + i >= end) break;
      uint4 v[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        v[t] = x[t] != nullptr ? *reinterpret_cast<const uint4*>(x[t] + (b + i) * kBlock)
                               : make_uint4(0, 0, 0, 0);
      sums.add(current[i], v);
    }
#pragma unroll
    for (int i = 0; i < kAhead<Source>; ++i) current[i] = next[i];
  }

  constexpr int kSlice = 8 * kTiles * kRowStride;
  sums.store(partial + warp * kSlice, g, c);
  __syncthreads();
  for (int i = threadIdx.x; i < job.count * (kUnit / 2); i += kWarps * 32) {
    const int pair = i % (kUnit / 2), token = i / (kUnit / 2);
    const float* at = partial + token * kRowStride + pair / 8 * 16 + pair % 8;
    float v0 = 0, v1 = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v0 += at[w * kSlice], v1 += at[w * kSlice + 8];
    finish(epilogue, unit, pair, job.first + token, job.expert, v0 * p.factor, v1 * p.factor);
  }
}

template <class Source, int kTiles, class Epilogue>
Status run(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  const Params p{.data = w.data.as<uint8_t>(),
                 .scales = w.scales.as<uint8_t>(),
                 .units = static_cast<int>(w.units),
                 .blocks = static_cast<int>(w.cols / kBlock),
                 .x = static_cast<const uint16_t*>(x.x),
                 .rows = x.rows,
                 .cols = static_cast<int>(w.cols),
                 .tokens = x.tokens,
                 .factor = x.factor * Source::kFactor,
                 .jobs = x.jobs,
                 .job_count = x.job_count};
  constexpr size_t kShared = sizeof(float) * kWarps * 8 * kTiles * kRowStride;
  const auto kernel = gemm_kernel<Source, kTiles, Epilogue>;
  if constexpr (kShared > 48 * 1024) {
    static const cudaError_t raised =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
    if (raised != cudaSuccess) return check(raised, "shared memory");
  }
  const int jobs = x.jobs != nullptr ? x.tokens : (x.tokens + 8 * kTiles - 1) / (8 * kTiles);
  return launch(kernel, dim3(p.units, jobs), dim3(kWarps * 32), kShared, stream, p, epilogue);
}

template <class Source, class Epilogue>
Status run_tile(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  const int tile = x.jobs != nullptr ? x.tile : x.tokens;
  if (tile <= 8) return run<Source, 1>(w, x, epilogue, stream);
  if (tile <= 16) return run<Source, 2>(w, x, epilogue, stream);
  if (tile <= 32) return run<Source, 4>(w, x, epilogue, stream);
  return run<Source, 8>(w, x, epilogue, stream);
}

template <class Epilogue>
Status run_kind(const Matrix& w, const Activations& x, const Epilogue& epilogue, cudaStream_t stream) {
  switch (w.kind) {
    case Kind::kBF16:
      return run_tile<Bf16Source>(w, x, epilogue, stream);
    case Kind::kF16:
      return run_tile<F16Source>(w, x, epilogue, stream);
    case Kind::kQ8_0:
      return run_tile<Q8Source>(w, x, epilogue, stream);
    case Kind::kMxfp8:
      return run_tile<Mxfp8Source>(w, x, epilogue, stream);
    case Kind::kMxfp4:
      return run_tile<Mxfp4Source>(w, x, epilogue, stream);
  }
  return {};
}

}  // namespace

Status gemm(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream) {
  return run_kind(w, x, out, stream);
}
Status gemm(const Matrix& w, const Activations& x, const SwiGlu& out, cudaStream_t stream) {
  return run_kind(w, x, out, stream);
}
Status gemm(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream) {
  return run_kind(w, x, out, stream);
}

}  // namespace moesaic::cuda
