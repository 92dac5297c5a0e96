#include "backend/cuda/kernels/common/dequant.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/kernels/common/stored.cuh"

namespace moesaic::cuda {
namespace {

// One row's eight values as bytes plus the row's scale in this block.
__device__ uint16_t encode_bytes(Kind kind, const Raw* s, int64_t row, int64_t b, int c, float (&v)[8],
                                 uint8_t (&out)[8]) {
  const float top = amax(v);  // by all lanes together
  if (row >= 0 && kind == Kind::kQ8_0 && s->format == Format::kQ8_0) {
    const uint8_t* r = s->data + row * s->row_stride + b * 34;
    for (int i = 0; i < 8; ++i) out[i] = r[2 + 8 * c + i] ^ 0x80;
    return *reinterpret_cast<const uint16_t*>(r);
  }
  if (row >= 0 && kind == Kind::kMxfp8 && s->format == Format::kMxfp8) return mxfp8_codes(*s, row, b, c, out);
  if (kind == Kind::kQ8_0) {
    const __half scale = __float2half_rn(top / 127.0f);
    const float d = __half2float(scale), inverse = d > 0 ? 1.0f / d : 0.0f;
    for (int i = 0; i < 8; ++i)
      out[i] =
          static_cast<uint8_t>(static_cast<int>(fminf(fmaxf(rintf(v[i] * inverse), -127.0f), 127.0f)) + 128);
    return __half_as_ushort(scale);
  }
  return to_mxfp8(top, v, out);
}

__device__ uint32_t pair16(Kind kind, float lo, float hi) {
  if (kind == Kind::kBF16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  const __half2 v = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// out[row] = table[token[row]]; one warp a block of 32.
__global__ void embed_kernel(const Raw table, const int32_t* tokens, int rows, float* out) {
  wait_for_predecessor();
  const int64_t blocks = table.scale_stride,
                index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 4) + threadIdx.x / 4;
  launch_dependents();
  if (index >= rows * blocks) return;
  float v[8];
  const int c = threadIdx.x % 4;
  read8(table, tokens[index / blocks], index % blocks, c, v);
  float4* to = reinterpret_cast<float4*>(out + index * kBlock + 8 * c);
  to[0] = {v[0], v[1], v[2], v[3]};
  to[1] = {v[4], v[5], v[6], v[7]};
}

// One warp packs one block of one weight tile.
__global__ void repack_kernel(const RepackParams p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (index >= p.experts * p.weight_tiles * p.blocks) return;
  const int64_t expert = index / (p.weight_tiles * p.blocks), weight_tile = index / p.blocks % p.weight_tiles,
                b = index % p.blocks;
  const Raw sources[2] = {of_expert(p.source[0], expert), of_expert(p.source[1], expert)};
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  float v[2][2][8];
  uint8_t code[2][2][8];
  uint16_t scale[2][2];
  for (int m = 0; m < 2; ++m) {
    for (int h = 0; h < 2; ++h) {
      const SourceRow row = row_at(p, sources, weight_tile, m, h, g);
      if (p.kind == Kind::kMxfp4) {
        scale[m][h] = mx_codes(p, row, b, c, code[m][h]);
        continue;
      }
      for (float& x : v[m][h]) x = 0;
      if (row.row >= 0) read8(*row.source, row.row, b, c, v[m][h]);
      for (const float x : v[m][h]) {
        if (!isfinite(x)) *p.fault = kNotFinite;
      }
      if (p.kind == Kind::kQ8_0 || p.kind == Kind::kMxfp8)
        scale[m][h] = encode_bytes(p.kind, row.source, row.row, b, c, v[m][h], code[m][h]);
      if (p.kind == Kind::kQ8_0 && fabsf(__half2float(__ushort_as_half(scale[m][h]))) > kMostQ8Scale)
        atomicMax(p.fault, kTooLarge);
    }
  }
  if (p.kind == Kind::kBF16 || p.kind == Kind::kF16) {
    for (int q = 0; q < 4; ++q) {
      const int m = q / 2, k = q % 2 * 4;
      const uint4 word = {
          pair16(p.kind, v[m][0][k], v[m][0][k + 1]), pair16(p.kind, v[m][1][k], v[m][1][k + 1]),
          pair16(p.kind, v[m][0][k + 2], v[m][0][k + 3]), pair16(p.kind, v[m][1][k + 2], v[m][1][k + 3])};
      *reinterpret_cast<uint4*>(p.data + index * 2048 + q * 512 + lane * 16) = word;
    }
    return;
  }
  if (p.kind == Kind::kMxfp4) {
    uint32_t words[4];
    for (int q = 0; q < 4; ++q) {
      const int m = q / 2, k = q % 2 * 4;
      const uint8_t a[4][2] = {{code[m][0][k], code[m][0][k + 1]},
                               {code[m][1][k], code[m][1][k + 1]},
                               {code[m][0][k + 2], code[m][0][k + 3]},
                               {code[m][1][k + 2], code[m][1][k + 3]}};
      words[q] = mxfp4_word(a);
    }
    *reinterpret_cast<uint4*>(p.data + index * 512 + lane * 16) = {words[0], words[1], words[2], words[3]};
  } else {
    for (int m = 0; m < 2; ++m) {
      uint32_t words[4];
      for (int i = 0; i < 4; ++i) {
        const uint8_t* lo = code[m][0] + 2 * i;
        const uint8_t* hi = code[m][1] + 2 * i;
        words[i] = lo[0] | lo[1] << 8 | hi[0] << 16 | static_cast<uint32_t>(hi[1]) << 24;
      }
      *reinterpret_cast<uint4*>(p.data + index * 1024 + m * 512 + lane * 16) = {words[0], words[1], words[2],
                                                                                words[3]};
    }
  }
  if (c != 0) return;
  for (int i = 0; i < 4; ++i) {
    if (p.kind == Kind::kQ8_0) {
      reinterpret_cast<uint16_t*>(p.scales + index * 64)[4 * g + i] = scale[i / 2][i % 2];
    } else {
      p.scales[index * 32 + 4 * g + i] = static_cast<uint8_t>(scale[i / 2][i % 2]);
    }
  }
}

// Matrix::tops of the weight tiles' scales; a warp a weight tile, a lane a row.
__global__ void tops_kernel(const RepackParams p) {
  const int64_t weight_tile = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (weight_tile >= p.experts * p.weight_tiles) return;
  const int lane = threadIdx.x % 32;
  uint8_t top = 1;
  for (int64_t b = 0; b < p.blocks; ++b)
    top = max(top, p.scales[(weight_tile * p.blocks + b) * kWeightTileRows + lane]);
  p.tops[weight_tile * kWeightTileRows + lane] = top;
}

}  // namespace

Status repack(const RepackParams& params, cudaStream_t stream) {
  const auto grid = [](int64_t warps) { return dim3(static_cast<unsigned>((warps + 7) / 8)); };
  const int64_t weight_tiles = params.experts * params.weight_tiles;
  const Status status =
      launch_alone(repack_kernel, grid(weight_tiles * params.blocks), dim3(256), 0, stream, params);
  if (!status.ok() || params.kind != Kind::kMxfp8) return status;
  return launch_alone(tops_kernel, grid(weight_tiles), dim3(256), 0, stream, params);
}

Status embed(const Raw& table, int64_t cols, const int32_t* tokens, int rows, float* out,
             cudaStream_t stream) {
  const auto threads = static_cast<unsigned>(rows * cols / 8);
  return launch(embed_kernel, dim3((threads + 255) / 256), dim3(256), 0, stream, table, tokens, rows, out);
}

}  // namespace moesaic::cuda
