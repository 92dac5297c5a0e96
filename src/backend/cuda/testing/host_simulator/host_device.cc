// A device that is the host: memory and streams of CUDA's runtime, whose work is done when it is asked for,
// and the operations that have no kernel here, in plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/common/sample.h"
#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/repack_quads.h"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/ops/attention.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/free_memory.h"
#include "base/error.h"
#include "core/choose_token.h"
#include "mx/formats.h"

// ---- CUDA's runtime ----

namespace {

using Memory = std::unique_ptr<void, void (*)(void*)>;
std::map<void*, Memory>& memory() {
  static std::map<void*, Memory> all;
  return all;
}

// As aligned as the device's, and zeroed.
void* allocate_zeros(size_t bytes) {
  if (bytes == 0) return nullptr;
  Memory fresh(std::aligned_alloc(256, (bytes + 255) / 256 * 256), std::free);
  void* const p = fresh.get();
  std::memset(p, 0, bytes);
  memory().emplace(p, std::move(fresh));
  return p;
}

}  // namespace

extern "C" {

cudaError_t cudaFree(void* p) {
  memory().erase(p);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

}  // extern "C"

namespace moesaic::cuda {

// ---- runtime/ ----

Status check(cudaError_t code, const std::string& what) {
  return code == cudaSuccess ? Status() : error(StatusCode::kInternal, "{}", what);
}
Result<DeviceBuffer> DeviceBuffer::allocate(size_t bytes, const std::string&) {
  DeviceBuffer buffer;
  buffer.data_ = allocate_zeros(bytes), buffer.bytes_ = bytes;
  return buffer;
}
Status allocate(const std::vector<Wanted>& list, const std::string& what) {
  for (const Wanted& w : list) {
    ASSIGN_OR_RETURN(*w.buffer, DeviceBuffer::allocate(w.bytes, what));
  }
  return {};
}
double sum(const std::vector<Wanted>& list) {
  double bytes = 0;
  for (const Wanted& w : list) bytes += static_cast<double>(w.bytes);
  return bytes;
}
Result<PinnedBuffer> PinnedBuffer::allocate(size_t bytes) {
  PinnedBuffer buffer;
  buffer.data_ = allocate_zeros(bytes), buffer.bytes_ = bytes;
  return buffer;
}
const DeviceCalls kDeviceCalls = {};
DeviceGuard::DeviceGuard(int, const DeviceCalls& calls) : calls_(calls) {}
DeviceGuard::~DeviceGuard() { restored_ = -1; }
Status DeviceGuard::status() const { return {}; }

// ---- operations ----

namespace {

float bf16_at(const void* p, int64_t i) { return mx::decode_bf16(static_cast<const uint16_t*>(p)[i]); }
uint16_t half_word(float v, bool bf16) { return bf16 ? mx::encode_bf16(v) : mx::encode_f16(v); }

// A row's attention, of one query head.
void attend_head(const Attention& p, const RowTile& tile, int head) {
  const int64_t dim = p.head_dim, kv_head = head / (p.heads / p.kv_heads), row = tile.row;
  const int first = p.window > 0 ? std::max(0, tile.position - p.window + 1) : 0;
  std::vector<double> sum(static_cast<size_t>(dim));
  double total = std::exp(p.sinks[head]);
  for (int key = first; key <= tile.position; ++key) {
    const int64_t page = p.pages[tile.table[p.sliding ? 1 : 0] + key / kPageTokens];
    const int64_t at = (page * p.kv_heads + kv_head) * kPageTokens * dim;
    double score = 0;
    for (int d = 0; d < dim; ++d)
      score += double{bf16_at(p.q, (row * p.heads + head) * dim + d)} *
               bf16_at(p.k, at + k_at(p.head_dim, key % kPageTokens, d));
    const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
    total += weight;
    for (int d = 0; d < dim; ++d)
      sum[static_cast<size_t>(d)] += weight * bf16_at(p.v, at + v_at(key % kPageTokens, d));
  }
  for (int d = 0; d < dim; ++d)
    static_cast<uint16_t*>(p.out)[(row * p.heads + head) * dim + d] =
        half_word(static_cast<float>(sum[static_cast<size_t>(d)] / total), p.bf16);
}
Status attend_rows(const Attention& p) {
  EXPECT_FALSE(p.fp8);
  for (int i = 0; i < p.tile_count; ++i) {
    EXPECT_EQ(p.tiles[i].count, 1);
    for (int head = 0; head < p.heads; ++head) attend_head(p, p.tiles[i], head);
  }
  return {};
}

Status absent(const char* what) { return error(StatusCode::kInternal, "{} is not here", what); }

}  // namespace

Status attend_decode(const Attention& p, cudaStream_t) {
  for (int i = 0; i < p.tile_count; ++i)
    EXPECT_GE(p.kv_splits, kv_splits_of(p.tiles[i].position / kPageTokens + 1));
  return attend_rows(p);
}
Status attend_prefill(const Attention& p, cudaStream_t) { return attend_rows(p); }
Status attend_portable(const Attention& p, cudaStream_t) { return attend_rows(p); }

Status norm(const Norm& p, cudaStream_t) {
  EXPECT_EQ(p.row_map, nullptr);
  EXPECT_EQ(p.deferred.expert_out, nullptr);
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* x = p.x + row * p.hidden;
    double squares = 0;
    for (int i = 0; i < p.hidden; ++i) squares += double{x[i]} * x[i];
    const double scale = 1 / std::sqrt(squares / p.hidden + p.eps);
    for (int i = 0; i < p.hidden; ++i) {
      const auto y = static_cast<float>(x[i] * scale * p.weight[i]);
      static_cast<uint16_t*>(p.out)[row * p.hidden + i] = half_word(y * p.factor, p.bf16);
      if (p.out_f32 != nullptr) p.out_f32[row * p.hidden + i] = y;
    }
  }
  return {};
}
Status rotations(const int32_t* positions, int rows, const double* inverse_frequency, int half, double factor,
                 float2* rotation, cudaStream_t) {
  for (int64_t i = 0; i < int64_t{rows} * half; ++i) {
    const int64_t row = i / half;
    const double angle = positions[row] * inverse_frequency[i % half];
    rotation[i] = {static_cast<float>(std::cos(angle) * factor),
                   static_cast<float>(std::sin(angle) * factor)};
  }
  return {};
}
Status sample(const SampleRows& p, cudaStream_t) {
  for (int row = 0; row < p.rows; ++row) {
    EXPECT_LT(p.sampling[row].logprobs, 0);
    SampleResult& result = p.results[*p.result_buffer * p.stride + row];
    p.sampled_tokens[row] = result.token =
        choose_token({p.logits + int64_t{row} * p.vocab, static_cast<size_t>(p.vocab)}, {}, p.sampling[row]);
    result.fault = *p.fault;
  }
  return {};
}

namespace sm90 {

// By the kernel for every device: its order of sums is another, and that is all.
namespace {
template <class Epilogue>
Status decode(const Matrix& w, Activations x, const Epilogue& out, cudaStream_t stream) {
  EXPECT_EQ(x.rows, nullptr);
  x.tile = x.tokens <= 8 ? 8 : x.tokens <= 16 ? 16 : 32;
  return gemm(w, x, out, stream);
}
}  // namespace
bool dense_decode_fits(int64_t, int tokens) { return tokens <= 32; }
Status dense_decode(const Matrix& w, const Activations& x, const Store& out, cudaStream_t stream) {
  return decode(w, x, out, stream);
}
Status dense_decode(const Matrix& w, const Activations& x, const Qkv& out, cudaStream_t stream) {
  return decode(w, x, out, stream);
}
Status dense_decode(const Matrix& w, const Norm& x, const Store& out, cudaStream_t stream) {
  RETURN_IF_ERROR(norm(x, stream));
  return decode(w, {.x = x.out, .factor = 1.0f / x.factor, .tokens = x.rows}, out, stream);
}
Status dense_decode(const Matrix&, const Norm&, const Qkv&, cudaStream_t) { return absent("dense_decode"); }
ActivationTiles dense_tiles(const Matrix&, const SlabLayout&, void*, int) { return {}; }
Status arrange(const void*, const int32_t*, const ActivationTiles&, cudaStream_t) { return absent("wgmma"); }
Status wgmma_dense(const Matrix&, const ActivationTiles&, float, const Store&, cudaStream_t) {
  return absent("wgmma");
}
Status wgmma_dense(const Matrix&, const ActivationTiles&, float, const Qkv&, cudaStream_t) {
  return absent("wgmma");
}

}  // namespace sm90

namespace sm120 {

Status repack(const RepackParams&, cudaStream_t) { return absent("quads"); }
Status expand(const __nv_bfloat16*, const int32_t*, const Tokens&, cudaStream_t) { return absent("quads"); }
Status norm_expand(const Norm&, const Tokens&, cudaStream_t) { return absent("quads"); }
Status gemm(const QuadWeights&, const Tokens&, Tile, const Store&, cudaStream_t) { return absent("quads"); }
Status gemm(const QuadWeights&, const Tokens&, Tile, const Qkv&, cudaStream_t) { return absent("quads"); }

}  // namespace sm120
}  // namespace moesaic::cuda
