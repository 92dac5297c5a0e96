// prepare_dense() of backend/layer_operators.h: a dense product with what stands before and behind it.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/common/layer_rows.h"
#include "backend/cuda/kernels/common/pack_step.h"
#include "backend/cuda/operators/layer_operators.h"
#include "backend/cuda/operators/row_type.h"
#include "backend/cuda/ops/expert_weights.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/linear.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/ops/workspaces.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr int64_t kChunkTokens = 4096;    // tokens that are computed at a time,
constexpr int64_t kChunkSums = 16 << 20;  // and values of theirs that stay in the workspace: 64 MB
constexpr int kWarmTokens[] = {1, 12, 24, 48, 96, 200, 600, 1024};  // some of each kernel

constexpr Format format_of(ElementType type) {
  constexpr Format kFormats[] = {Format::kF32, Format::kF16, Format::kBF16};
  return kFormats[static_cast<int>(type)];
}
const void* advanced(const void* from, int64_t bytes) {
  return from == nullptr ? nullptr : static_cast<const std::byte*>(from) + bytes;
}

// The pieces of a workspace.
struct DensePieces {
  void* x = nullptr;      // [tokens, cols] of 16 bits
  void* tiles = nullptr;  // LinearSetup's
  float* sums = nullptr;  // [tokens, rows]
  size_t bytes = 0;
};

class CudaDense final : public DenseOperator {
 public:
  CudaDense(const DenseOptions& options, const DenseMatrix& m)
      : DenseOperator(m.rows, m.cols, options.device), options_(options) {}
  Status prepare(const DenseMatrix& m, cudaStream_t stream);

  size_t workspace_bytes(int64_t tokens) const override;
  size_t bytes() const override {
    return matrix_.data.bytes() + matrix_.scales.bytes() + matrix_.tops.bytes() + bias_.bytes();
  }
  std::string plan(int64_t tokens) const override;

 protected:
  Status launch(const DenseCall& call) const override;
  Status launch(const QkvCall& call) const override;

 private:
  Status load(const DenseMatrix& m, cudaStream_t stream);
  Status check_faults(cudaStream_t stream) const;
  Status warm_up(cudaStream_t stream) const;
  int64_t most_sums() const { return std::clamp<int64_t>(kChunkSums / rows(), 1, kChunkTokens); }
  DensePieces deal(void* memory, int64_t tokens, bool sums) const;
  Result<std::shared_ptr<void>> memory_of(const Scratch& scratch, int64_t tokens, cudaStream_t stream) const;
  Status run_chunk(const DenseCall& call, const DensePieces& pieces) const;
  Status run_chunk(const QkvCall& call, const DensePieces& pieces) const;
  Status product(const void* x, const Store& out, int tokens, void* tiles, cudaStream_t stream) const;
  Store sums_in(float* out) const {
    return {.out = out, .stride = rows(), .bias = bias_.as<float>(), .rows = static_cast<int>(rows())};
  }

  std::shared_ptr<Workspaces> workspaces_ = Workspaces::shared();
  DenseOptions options_;
  Target target_;
  slabs::SlabLayout layout_;
  Matrix matrix_;
  DeviceBuffer bias_, faults_;
};

// ---- preparing ----

Status CudaDense::load(const DenseMatrix& m, cudaStream_t stream) {
  matrix_ = {.kind = kind_of(format_of(m.type), options_.format),
             .rows = rows(),
             .cols = cols(),
             .weight_tiles = weight_tiles_of(rows())};
  const auto tiles = static_cast<size_t>(matrix_.weight_tiles);
  RETURN_IF_ERROR(allocate({{&matrix_.data, tiles * static_cast<size_t>(matrix_.weight_tile_bytes())},
                            {&matrix_.scales, tiles * static_cast<size_t>(matrix_.weight_tile_scale_bytes())},
                            {&matrix_.tops, tiles * static_cast<size_t>(matrix_.weight_tile_top_bytes())},
                            {&bias_, static_cast<size_t>(rows()) * sizeof(float)},
                            {&faults_, 2 * sizeof(int)}},
                           "a dense matrix"));
  const int64_t value_bytes = m.type == ElementType::kF32 ? 4 : 2;
  const Raw raw{.format = format_of(m.type),
                .rows = rows(),
                .row_stride = m.row_stride * value_bytes,
                .data = static_cast<const uint8_t*>(m.weight)};
  RepackParams repacking = repacking_of(matrix_, raw, {}, faults_.as<int>());
  repacking.tops = matrix_.tops.as<uint8_t>();
  RETURN_IF_ERROR(repack_weights(repacking, stream));
  return take_bias({.from = m.bias,
                    .type = row_type(m.bias_type),
                    .count = static_cast<int>(rows()),
                    .experts = 1,
                    .out = bias_.as<float>(),
                    .fault = faults_.as<int>() + 1},
                   stream);
}

Status CudaDense::check_faults(cudaStream_t stream) const {
  int faults[2] = {};
  RETURN_IF_ERROR(check(
      cudaMemcpyAsync(faults, faults_.as<void>(), sizeof(faults), cudaMemcpyDeviceToHost, stream), "dense"));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), "dense"));
  if (faults[0] != kNone) return invalid("dense: the weight has a value that is not finite");
  return faults[1] == 0 ? Status() : invalid("dense: the bias has a value that is not finite");
}

// Kernels are loaded now, and not while a stream is captured.
Status CudaDense::warm_up(cudaStream_t stream) const {
  const int64_t most = std::min<int64_t>(most_sums(), *std::ranges::max_element(kWarmTokens));
  DeviceBuffer x, out, memory;
  const auto wide = static_cast<size_t>(most * std::max(rows(), cols()));
  RETURN_IF_ERROR(allocate({{&x, wide * 2}, {&out, wide * sizeof(float)}, {&memory, workspace_bytes(most)}},
                           "a first run"));
  const auto* const zeros = x.as<void>();
  const Scratch scratch{memory.as<void>(), memory.bytes()};
  for (const int tokens : kWarmTokens) {
    if (tokens > most) break;
    RETURN_IF_ERROR(launch(DenseCall{
        .tokens = tokens, .x = zeros, .out = out.as<void>(), .scratch = scratch, .stream = stream}));
  }
  RETURN_IF_ERROR(norm_rows(
      {.x = zeros, .rows = 1, .hidden = static_cast<int>(cols()), .weight = zeros, .out = out.as<void>()},
      stream));
  RETURN_IF_ERROR(rotate_rows({.qkv = x.as<float>(),
                               .rows = 1,
                               .heads = 1,
                               .head_dim = 32,
                               .positions = x.as<int64_t>(),
                               .cos_sin = zeros,
                               .slots = x.as<int64_t>(),
                               .q = out.as<void>()},
                              stream));
  return check(cudaStreamSynchronize(stream), "a first run");
}

Status CudaDense::prepare(const DenseMatrix& m, cudaStream_t stream) {
  const DeviceGuard guard(device());
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(check_on_device("dense", "the weight", m.weight, device()));
  if (m.bias != nullptr) RETURN_IF_ERROR(check_on_device("dense", "the bias", m.bias, device()));
  ASSIGN_OR_RETURN(const Features features, features_of_device(device()));
  target_ = target_of(features, {});
  layout_ = slab_layout_of(device(), 0);
  RETURN_IF_ERROR(load(m, stream));
  RETURN_IF_ERROR(check_faults(stream));
  return options_.warm_up ? warm_up(stream) : Status();
}

// ---- running ----

DensePieces CudaDense::deal(void* memory, int64_t tokens, bool sums) const {
  MemoryPieces pieces(memory);
  DensePieces p;
  p.x = pieces.take<void>(static_cast<size_t>(tokens * cols()) * 2);
  p.tiles = pieces.take<void>(linear_tile_bytes(static_cast<int>(tokens), static_cast<int>(cols())));
  if (sums) p.sums = pieces.take<float>(static_cast<size_t>(tokens * rows()) * sizeof(float));
  p.bytes = pieces.bytes();
  return p;
}

size_t CudaDense::workspace_bytes(int64_t tokens) const {
  return std::max(deal(nullptr, std::clamp<int64_t>(tokens, 1, kChunkTokens), false).bytes,
                  deal(nullptr, std::clamp<int64_t>(tokens, 1, most_sums()), true).bytes);
}

std::string CudaDense::plan(int64_t tokens) const {
  const LinearShape shape{.kind = matrix_.kind,
                          .rows = rows(),
                          .cols = cols(),
                          .tokens = static_cast<int>(std::clamp<int64_t>(tokens, 1, kChunkTokens))};
  const Result<LinearChoice> choice = select(shape, target_);
  return fmt::format("{}, {}", kind_name(matrix_.kind),
                     choice.ok() ? choice.value().config->name : "no kernel");
}

// The caller's, or a block's as long as the pointer is kept.
Result<std::shared_ptr<void>> CudaDense::memory_of(const Scratch& scratch, int64_t tokens,
                                                   cudaStream_t stream) const {
  if (scratch.memory != nullptr) return std::shared_ptr<void>(std::shared_ptr<void>(), scratch.memory);
  ASSIGN_OR_RETURN(const auto block, workspaces_->get(device(), stream, workspace_bytes(tokens)));
  return std::shared_ptr<void>(block, block->memory.as<void>());
}

Status CudaDense::product(const void* x, const Store& out, int tokens, void* tiles,
                          cudaStream_t stream) const {
  const LinearSetup setup{target_, layout_, tiles, stream};
  return linear(matrix_, Activations{.x = x, .tokens = tokens}, out, setup);
}

Status CudaDense::run_chunk(const DenseCall& c, const DensePieces& pieces) const {
  auto* const stream = static_cast<cudaStream_t>(c.stream);
  const void* x = c.x;
  if (!takes_bf16(matrix_.kind)) {
    RETURN_IF_ERROR(to_half(c.x, c.tokens * cols(), 1, pieces.x, stream));
    x = pieces.x;
  }
  const int tokens = static_cast<int>(c.tokens);
  if (pieces.sums == nullptr) {
    Store out = sums_in(static_cast<float*>(c.out));
    out.add = c.residual != nullptr;
    return product(x, out, tokens, pieces.tiles, stream);
  }
  RETURN_IF_ERROR(product(x, sums_in(pieces.sums), tokens, pieces.tiles, stream));
  return sum_rows({.sums = pieces.sums,
                   .count = c.tokens * rows(),
                   .residual = c.residual,
                   .out = c.out,
                   .bf16 = c.out_type == ElementType::kBF16},
                  stream);
}

Status CudaDense::launch(const DenseCall& call) const {
  const DeviceGuard guard(device());
  RETURN_IF_ERROR(guard.status());
  ASSIGN_OR_RETURN(const std::shared_ptr<void> memory,
                   memory_of(call.scratch, call.tokens, static_cast<cudaStream_t>(call.stream)));
  // F32 rows without a residual, or with one that stands there already, are written by the product itself.
  const bool sums =
      call.out_type == ElementType::kBF16 || (call.residual != nullptr && call.residual != call.out);
  const int64_t most = sums ? most_sums() : kChunkTokens,
                out_bytes = rows() * (call.out_type == ElementType::kBF16 ? 2 : 4);
  DenseCall part = call;
  for (int64_t done = 0; done < call.tokens; done += most) {
    part.tokens = std::min(most, call.tokens - done);
    part.x = advanced(call.x, done * cols() * 2), part.residual = advanced(call.residual, done * out_bytes);
    part.out = static_cast<std::byte*>(call.out) + done * out_bytes;
    RETURN_IF_ERROR(run_chunk(part, deal(memory.get(), part.tokens, sums)));
  }
  return {};
}

Status CudaDense::run_chunk(const QkvCall& c, const DensePieces& pieces) const {
  auto* const stream = static_cast<cudaStream_t>(c.stream);
  const int tokens = static_cast<int>(c.tokens);
  RETURN_IF_ERROR(norm_rows({.x = c.x,
                             .rows = tokens,
                             .hidden = static_cast<int>(cols()),
                             .weight = c.norm,
                             .weight_type = row_type(c.norm_type),
                             .eps = c.eps,
                             .out = pieces.x,
                             .bf16 = takes_bf16(matrix_.kind)},
                            stream));
  RETURN_IF_ERROR(product(pieces.x, sums_in(pieces.sums), tokens, pieces.tiles, stream));
  return rotate_rows({.qkv = pieces.sums,
                      .rows = tokens,
                      .heads = c.heads,
                      .kv_heads = c.cache.kv_heads,
                      .head_dim = c.cache.head_dim,
                      .positions = c.positions,
                      .cos_sin = c.cos_sin,
                      .cos_sin_type = row_type(c.cos_sin_type),
                      .table_positions = c.table_positions,
                      .slots = c.slots,
                      .layout = layout_of(c.cache),
                      .fp8 = c.cache.fp8,
                      .q = c.q,
                      .k = c.cache.k,
                      .v = c.cache.v},
                     stream);
}

Status CudaDense::launch(const QkvCall& call) const {
  const DeviceGuard guard(device());
  RETURN_IF_ERROR(guard.status());
  ASSIGN_OR_RETURN(const std::shared_ptr<void> memory,
                   memory_of(call.scratch, call.tokens, static_cast<cudaStream_t>(call.stream)));
  const int64_t most = most_sums();
  QkvCall part = call;
  for (int64_t done = 0; done < call.tokens; done += most) {
    part.tokens = std::min(most, call.tokens - done);
    part.x = advanced(call.x, done * cols() * 2);
    part.positions = call.positions + done, part.slots = call.slots + done;
    part.q = static_cast<std::byte*>(call.q) + done * call.heads * call.cache.head_dim * 2;
    RETURN_IF_ERROR(run_chunk(part, deal(memory.get(), part.tokens, true)));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DenseOperator>> prepare_dense(const DenseOptions& options, const DenseMatrix& matrix,
                                                     void* stream) {
  RETURN_IF_ERROR(check_cuda_device("dense", options.device));
  auto made = std::make_unique<CudaDense>(options, matrix);
  RETURN_IF_ERROR(made->prepare(matrix, static_cast<cudaStream_t>(stream)));
  return std::unique_ptr<DenseOperator>(std::move(made));
}

}  // namespace moesaic::cuda
