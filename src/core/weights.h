// A model's weights as non-owning views of whatever file they came from. A checkpoint reader fills
// ModelWeights; a backend's load() repacks from it and may then let the source go. Strides make every
// published layout zero-copy: gate and up rows interleaved (Hugging Face) or apart (GGUF), Q, K, V fused
// ('original') or apart, BF16 experts transposed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/format.h"
#include "core/model_config.h"
#include "moesaic/status.h"

namespace moesaic {

class ThreadPool;

// [rows, cols]; element (r, c) of a plain format stands at data + r * row_stride + c * col_stride.
struct MatrixView {
  Format format = Format::kF32;
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
  int64_t row_stride = 0;             // bytes
  int64_t col_stride = 0;             // bytes, plain formats only
  const std::byte* scales = nullptr;  // where formats keep them apart: row r's at scales + r * scale_stride
  int64_t scale_stride = 0;           // bytes
};

// One matrix per expert, `count` of them.
struct ExpertsView {
  MatrixView first;
  int64_t count = 0;
  int64_t data_stride = 0, scale_stride = 0;  // bytes from one expert to the next
  MatrixView at(int64_t expert) const;
};

// A dense (contiguous) view; scales only for the formats that keep them apart.
MatrixView dense_view(Format format, int64_t rows, int64_t cols, const std::byte* data,
                      const std::byte* scales = nullptr);
MatrixView slice_rows(const MatrixView& m, int64_t first, int64_t count, int64_t step = 1);

StoredBlocks blocks_of(const MatrixView& m, int64_t r);  // those of row r
// Row r as floats, exact. out has cols elements.
void read_row(const MatrixView& m, int64_t r, std::span<float> out);
// Row r in a format, as it is where the matrix has that or the other order of MXFP4, else rounded. data:
// [row_bytes], scales: [row_scale_bytes], values: scratch [cols].
void convert_row(const MatrixView& m, int64_t r, Format format, std::span<float> values, std::byte* data,
                 std::byte* scales);

struct LayerWeights {
  MatrixView attn_norm;                      // [1, hidden]
  MatrixView q, k, v;                        // [heads * head_dim | kv_heads * head_dim, hidden]
  MatrixView q_bias, k_bias, v_bias;         // [1, rows of the matrix]
  MatrixView o, o_bias;                      // [hidden, heads * head_dim], [1, hidden]
  MatrixView sinks;                          // [1, heads]
  MatrixView mlp_norm;                       // [1, hidden]
  MatrixView router, router_bias;            // [experts, hidden], [1, experts]
  ExpertsView gate, up, down;                // [intermediate, hidden] twice, [hidden, intermediate]
  MatrixView gate_bias, up_bias, down_bias;  // [experts, intermediate] twice, [experts, hidden]
};

// LoRA adapters beside a matrix: y += up (down x). Several adapters stand one behind the other along
// the rank, their scales are in `up`. F32; the rank is a multiple of 32, and zero where no adapter has it.
struct LowRank {
  MatrixView down, up;  // [rank, cols], [rows, rank]
  bool empty() const { return down.data == nullptr; }
};
struct LowRankExperts {
  ExpertsView down, up;
  bool empty() const { return down.count == 0; }
  LowRank at(int64_t expert) const { return {down.at(expert), up.at(expert)}; }
};
struct LayerAdapter {
  LowRank qkv;  // up: the rows of q, k and v, one behind the other
  LowRank o;
  LowRankExperts gate_up;  // up: [2 * intermediate, rank], gate and up rows interleaved
  LowRankExperts down;
};

// A layer's experts in the formats that LayerWeights names, where the file has others.
struct ConvertedExperts {
  ExpertsView gate, up, down;
  std::shared_ptr<const void> storage;  // keeps the views alive
};

struct ModelWeights {
  MatrixView embed;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  MatrixView final_norm;                // [1, hidden]
  MatrixView head;                      // [vocab, hidden]
  std::shared_ptr<const void> storage;  // keeps the views alive
  // [layers], or empty: none. Adapters of routers are part of the router matrices already: those are F32.
  std::vector<LayerAdapter> adapters;
  std::shared_ptr<const void> adapter_storage;
  // Not empty: every view lies in these few spans, much smaller than what the views add up to (dummy models
  // overlap theirs). A device copies them once and repacks from there.
  std::vector<std::span<const std::byte>> pools;
  // Tells the source that a layer's bytes (or with -1 the rest) will not be read again soon, so that mapped
  // pages need not stay resident. May be empty.
  std::function<void(int layer)> release;
  // After release(): drops what the system keeps of a layer's file (or with -1 the rest), so that the memory
  // is free for a device that shares it with the host. The next program reads from the disk again. May be
  // empty.
  std::function<void(int layer)> evict;
  // Asks the source to read a layer's bytes (or with -1 the rest) into memory, as they will be needed soon.
  // From any thread. May be empty.
  std::function<void(int layer)> prefetch;
  // Not empty: the experts' formats and sizes in `layers` are what this makes of a layer when it is asked to,
  // and their data is not to be read: see layer_of(). One thread at a time.
  std::function<Result<ConvertedExperts>(int layer)> convert_experts;
  bool converts_exactly = false;  // convert_experts changes no value
  // Beside convert_experts: the bytes of the layer's experts as the file has them.
  std::function<std::vector<std::span<const std::byte>>(int layer)> stored_experts;
  // True if all that was read so far was really there: a file may be cut short while it is loaded. May be
  // empty.
  std::function<Status()> intact;
};

// A layer whose every view can be read, as long as `storage` lives. Fails for lack of memory.
struct ReadableLayer {
  LayerWeights weights;
  std::shared_ptr<const void> storage;
};
Result<ReadableLayer> layer_of(const ModelWeights& weights, int layer);

// The layer's adapter; an empty one where there is none.
LayerAdapter adapter_of(const ModelWeights& weights, int layer);

bool all_mxfp4(const ModelWeights& weights);  // the experts of every layer

// Checks every view against the config: one line that names the first tensor of the wrong shape.
Status validate(const ModelWeights& weights, const ModelConfig& config);

// True if row r holds no NaN and no infinity, and no scale that is one.
bool row_is_finite(const MatrixView& m, int64_t r);
// An error that names the first row of a tensor that does.
Status check_finite(const MatrixView& m, const std::string& name, ThreadPool& pool);
// One line that names the first tensor with a NaN scale, a NaN or an infinity. Reads the scales of the block
// formats and every element of the others; where the layout keeps scales beside their blocks that touches the
// whole tensor. For backends that read weights in place; one that repacks them looks as it reads, in one
// pass.
Status check_finite(const ModelWeights& weights);

// Bytes of the weights as they are stored, by part.
struct StoredBytes {
  double experts = 0, projections = 0, head = 0, embedding = 0, rest = 0;  // rest: norms, biases, routers
  double adapters = 0;
  double sum() const { return experts + projections + head + embedding + rest + adapters; }
};
StoredBytes stored_bytes(const ModelWeights& weights);

// Bytes of weights that decoding one token reads (batch 1): experts count experts_per_token times.
double bytes_per_token(const ModelWeights& weights, const ModelConfig& config);

}  // namespace moesaic
