// Launch functions whose kernels do not run in the simulator: in plain loops, or by another kernel, or
// absent.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/kernels/common/sample.h"
#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/load_tile.h"
#include "backend/cuda/kernels/sm120/tile_code.h"
#include "backend/cuda/kernels/sm90/attention.h"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/random.h"
#include "base/error.h"
#include "core/choose_token.h"
#include "mx/formats.h"

namespace moesaic::cuda {
namespace {

float bf16_at(const void* p, int64_t i) { return mx::decode_bf16(static_cast<const uint16_t*>(p)[i]); }
uint16_t half_word(float v, bool bf16) { return bf16 ? mx::encode_bf16(v) : mx::encode_f16(v); }

float key_at(const Attention& p, int64_t page, int token, int d) {
  return p.fp8 ? mx::decode_e4m3(static_cast<const uint8_t*>(p.k)[page + k8_at(p.head_dim, token, d)])
               : bf16_at(p.k, page + k_at(p.head_dim, token, d));
}
float value_at(const Attention& p, int64_t page, int token, int d) {
  return p.fp8 ? mx::decode_e4m3(static_cast<const uint8_t*>(p.v)[page + v8_at(token, d)])
               : bf16_at(p.v, page + v_at(token, d));
}

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
      score += double{bf16_at(p.q, (row * p.heads + head) * dim + d)} * key_at(p, at, key % kPageTokens, d);
    const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
    total += weight;
    for (int d = 0; d < dim; ++d)
      sum[static_cast<size_t>(d)] += weight * value_at(p, at, key % kPageTokens, d);
  }
  for (int d = 0; d < dim; ++d)
    static_cast<uint16_t*>(p.out)[(row * p.heads + head) * dim + d] =
        half_word(static_cast<float>(sum[static_cast<size_t>(d)] / total), p.bf16);
}
Status attend_rows(const Attention& p) {
  for (int i = 0; i < p.tile_count; ++i) {
    RowTile row = p.tiles[i];
    for (int place = 0; place < p.tiles[i].count; ++place, ++row.row, ++row.position) {
      for (int head = 0; head < p.heads; ++head) attend_head(p, row, head);
    }
  }
  return {};
}

Status absent(const char* what) { return error(StatusCode::kInternal, "{} is not here", what); }

}  // namespace

Status attend_decode(const Attention& p, cudaStream_t) {
  for (int i = 0; i < p.tile_count; ++i) {
    EXPECT_EQ(p.tiles[i].count, 1);
    EXPECT_GE(p.kv_splits, kv_splits_of(p.tiles[i].position / kPageTokens + 1));
  }
  return attend_rows(p);
}
Status attend_prefill(const Attention& p, cudaStream_t) { return attend_rows(p); }
Status attend_portable(const Attention& p, const SpanScratch&, cudaStream_t) { return attend_rows(p); }

Status copy_step_inputs(const StepInputs& p, cudaStream_t) {
  std::memcpy(p.inputs, p.packed, static_cast<size_t>(p.count) * sizeof(int32_t));
  for (int row = 0; row < p.rows; ++row) {
    const int32_t source = p.inputs[p.token_sources + row];
    if (source >= 0) p.inputs[p.tokens + row] = p.sampled_tokens[source];
  }
  return {};
}
Status edit_logits(float* logits, int vocab, const RowEdits& edits, cudaStream_t) {
  for (const RowEdits::Row& row : std::span(edits.rows, static_cast<size_t>(edits.count))) {
    float* const own = logits + int64_t{row.row} * vocab;
    for (EditedToken& t : std::span(edits.tokens + row.first, static_cast<size_t>(row.count)))
      own[t.edit.token] = edited(t.logit = own[t.edit.token], t.edit);
    for (int token = 0; row.allowed >= 0 && token < vocab; ++token) {
      if ((edits.allowed[row.allowed + token / 32] >> (token % 32) & 1u) == 0) own[token] = -FLT_MAX;
    }
  }
  return {};
}
Status sample(const SampleRows& p, int, cudaStream_t) {
  for (int i = 0; i < std::max(p.rows, p.edits.count); ++i) {
    const int row = p.edits.count > 0 ? p.edits.rows[i].row : i;
    const DeviceSampling& sampling = p.edits.count > 0 ? p.edits.rows[i].sampling : p.sampling[row];
    EXPECT_LT(sampling.logprobs, 0);
    SampleResult& result = p.results[*p.result_buffer * p.stride + row];
    p.sampled_tokens[row] = result.token =
        choose_token({p.logits + int64_t{row} * p.vocab, static_cast<size_t>(p.vocab)}, {}, sampling);
    result.fault = *p.fault, result.likeliest = -1;
  }
  return {};
}

namespace sm90 {

// By the kernel for every device: its order of sums is another, and that is all.
bool dense_decode_fits(int64_t, int tokens) { return tokens <= 32; }
template <class Epilogue>
Status dense_decode(const Matrix& w, const Activations& x, const Epilogue& out, cudaStream_t stream) {
  EXPECT_EQ(x.rows, nullptr);
  Activations tiled = x;
  tiled.tile = x.tokens <= 8 ? 8 : x.tokens <= 16 ? 16 : 32;
  return gemm(w, tiled, out, stream);
}
template <>
Status dense_decode(const Matrix&, const Activations&, const SentStore&, cudaStream_t) {
  return absent("ranks");
}
template <class Epilogue>
Status dense_decode(const Matrix& w, const Norm& x, const Epilogue& out, cudaStream_t stream) {
  RETURN_IF_ERROR(norm(x, stream));
  return dense_decode(w, Activations{.x = x.out, .factor = 1.0f / x.factor, .tokens = x.rows}, out, stream);
}
template Status dense_decode(const Matrix&, const Activations&, const Store&, cudaStream_t);
template Status dense_decode(const Matrix&, const Activations&, const Qkv&, cudaStream_t);
template Status dense_decode(const Matrix&, const Norm&, const Store&, cudaStream_t);
template Status dense_decode(const Matrix&, const Norm&, const Qkv&, cudaStream_t);

}  // namespace sm90

namespace sm120 {

bool emulates() { return true; }
Status load_expert_tiles() { return {}; }
Status load_dense_tiles() { return {}; }
Result<const void*> load_tile(const void* kernel, const std::string&, size_t) { return kernel; }
std::string tile_name(Element, Tile, int, const std::string& epilogue) { return epilogue; }

}  // namespace sm120

// ---- runtime/ ----

cudaError_t probe_code() { return cudaSuccess; }
cudaError_t read_code_version(int& version) { return version = 90, cudaSuccess; }
bool runs_clusters(int, cudaStream_t) { return true; }
Result<double> measure_read_bandwidth(cudaStream_t) { return absent("read bandwidth"); }
Status fill_random(float*, int64_t, uint32_t, cudaStream_t) { return absent("random values"); }

}  // namespace moesaic::cuda
