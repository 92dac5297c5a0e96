// The class behind prepare_step().
#include "backend/step_operator.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/kernels/common/pack_step.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"
#include "base/log.h"

namespace moesaic {
namespace cuda {

namespace {

class CudaStepOperator final : public StepOperator {
 public:
  explicit CudaStepOperator(const StepOperatorOptions& options)
      : options_(options), backend_(backend_options(options)) {}
  Status prepare(const ModelConfig& config, const ModelWeights& weights);

  double bytes() const override { return bytes_; }
  size_t page_bytes() const override { return backend_.kv_page_bytes() / 2; }
  Status set_cache(int layer, void* base, int pages, int64_t stride) override;
  Status run(const StepOperatorCall& call) override;
  Status logits(const void* hidden, int rows, float* out, void* stream) override;

 private:
  static BackendOptions backend_options(const StepOperatorOptions& o) {
    return {.device = o.device,
            .dense = o.dense,
            .kv = o.fp8_cache ? KvFormat::kFp8 : KvFormat::kBf16,
            .max_rows = o.max_rows,
            .tuning_folder = o.tuning_folder};
  }
  Status check_call(const StepOperatorCall& call) const;
  StepShape shape_of(const StepOperatorCall& call, int first_row, int rows) const;
  Status run_part(const StepOperatorCall& call, int first_row, int rows, bool captures);
  Status report_fault(cudaStream_t stream);
  Status alloc_inputs();

  StepOperatorOptions options_;
  CudaBackend backend_;
  ModelConfig config_;
  std::vector<GivenCache> caches_;           // by layer; the base is null until a cache is given
  DeviceBuffer caches_on_device_, spoiled_;  // PackStep has them
  double bytes_ = 0;
  int table_pages_ = 0;  // pages of each sequence
  int pages_ = 0, pitch_ = 0;
  int given_ = 0;        // layers that have one
  void* out_ = nullptr;  // to which the captured steps write
  bool warned_ = false;  // a row that is not finite was reported
};

Status CudaStepOperator::prepare(const ModelConfig& config, const ModelWeights& weights) {
  config_ = config;
  caches_.assign(static_cast<size_t>(config.layers), {});
  for (int layer = 0; layer < config.layers; ++layer)
    caches_[static_cast<size_t>(layer)].sliding = config.sliding[static_cast<size_t>(layer)];
  table_pages_ = (options_.max_context + kPageTokens - 1) / kPageTokens;
  RETURN_IF_ERROR(backend_.open());
  const DeviceGuard guard(options_.device);
  // Weights that stand on the device are read by kernels, which must have ended.
  ModelWeights waiting = weights;
  Status waited;
  if (weights.release) {
    waiting.release = [&](int layer) {
      if (waited.ok()) waited = backend_.wait_for_kernels();
      if (waited.ok()) weights.release(layer);
    };
  }
  RETURN_IF_ERROR(backend_.load(config, waiting, {}));
  RETURN_IF_ERROR(waited);
  for (const MemoryPart& part : backend_.memory(config, weights, {})) bytes_ += part.bytes;
  return alloc_inputs();
}

Status CudaStepOperator::alloc_inputs() {
  const StepShape most{.rows = options_.max_rows,
                       .sequences = options_.max_sequences,
                       .decode_tiles = options_.max_rows,
                       .prefill_tiles = options_.max_rows};
  ASSIGN_OR_RETURN(caches_on_device_, DeviceBuffer::allocate(caches_.size() * sizeof(GivenCache), "step"));
  ASSIGN_OR_RETURN(spoiled_, DeviceBuffer::allocate(sizeof(int), "step"));
  const size_t tables = 2 * static_cast<size_t>(options_.max_sequences) * static_cast<size_t>(table_pages_);
  return backend_.room_for_inputs(static_cast<size_t>(layout_of(most).pages) + tables);
}

Status CudaStepOperator::set_cache(int layer, void* base, int pages, int64_t stride) {
  const auto half = static_cast<int64_t>(page_bytes());
  if (layer < 0 || layer >= config_.layers) return invalid("step: layer {} of {}", layer, config_.layers);
  if (base == nullptr || pages < 1) return invalid("step: layer {}'s cache is missing", layer);
  if (stride < 2 * half || stride % half != 0)
    return invalid("step: layer {}'s pages are {} bytes apart, not a multiple of {}", layer, stride, half);
  const auto pitch = static_cast<int>(stride / half);
  if (given_ > 0 && (pages != pages_ || pitch != pitch_) && layer > 0)
    return invalid("step: layer {}'s cache has {} pages {} bytes apart, the layers before have others", layer,
                   pages, stride);
  constexpr int64_t kMostPlaces = int64_t{1} << 31;
  if (int64_t{pages} * pitch * kPageTokens >= kMostPlaces)
    return invalid("step: a cache of {} pages; at most {}", pages, kMostPlaces / pitch / kPageTokens - 1);
  GivenCache& known = caches_[static_cast<size_t>(layer)];
  if (known.base == nullptr) ++given_;
  if (known.base != nullptr && (known.base != base || pages != pages_ || pitch != pitch_))
    RETURN_IF_ERROR(backend_.drop_graphs());
  known.base = static_cast<std::byte*>(base), pages_ = pages, pitch_ = pitch;
  backend_.set_cache(layer, known.base, known.base + half);
  return copy_to_device(caches_on_device_.as<GivenCache>() + layer, &known, sizeof known, "step");
}

Status CudaStepOperator::check_call(const StepOperatorCall& c) const {
  if (c.rows < 0 || c.sequences < 0 || c.sequences > options_.max_sequences)
    return invalid("step: {} rows of {} sequences; at most {} sequences", c.rows, c.sequences,
                   options_.max_sequences);
  if (c.rows == 0) return {};
  if (c.sequences == 0) return invalid("step: {} rows of no sequence", c.rows);
  if (given_ < config_.layers) return invalid("step: {} of {} layers have a cache", given_, config_.layers);
  for (const void* p : {static_cast<const void*>(c.host_starts), static_cast<const void*>(c.starts),
                        static_cast<const void*>(c.tokens), static_cast<const void*>(c.positions),
                        static_cast<const void*>(c.full.pages), static_cast<const void*>(c.full.slots),
                        static_cast<const void*>(c.sliding.pages), static_cast<const void*>(c.sliding.slots),
                        static_cast<const void*>(c.out)}) {
    if (p == nullptr) return invalid("step: a tensor is missing");
  }
  const std::span starts(c.host_starts, static_cast<size_t>(c.sequences) + 1);
  if (starts.front() != 0 || starts.back() > c.rows || !std::ranges::is_sorted(starts))
    return invalid("step: the sequences' first rows do not ascend from 0 to at most {}", c.rows);
  if (c.longest > options_.max_context)
    return invalid("step: a context of {} tokens; at most {}", c.longest, options_.max_context);
  return {};
}

StepShape CudaStepOperator::shape_of(const StepOperatorCall& c, int first_row, int rows) const {
  const Tiling tiling = backend_.tiling();
  StepShape shape{.rows = rows, .sequences = c.sequences};
  for (int s = 0; s < c.sequences; ++s) {
    const int begin = std::max(c.host_starts[s], first_row),
              count = std::min(c.host_starts[s + 1], first_row + rows) - begin;
    if (count <= 0) continue;
    if (count <= tiling.most_decode_rows) {
      shape.decode_tiles += count;
    } else {
      shape.prefill_tiles += (count + tiling.tokens - 1) / tiling.tokens;
    }
  }
  // Padding is attended to row by row.
  (tiling.most_decode_rows > 0 ? shape.decode_tiles : shape.prefill_tiles) +=
      std::clamp(first_row + rows - c.host_starts[c.sequences], 0, rows);
  // Rounded up, so that a few graphs serve all contexts.
  if (shape.decode_tiles > 0)
    shape.kv_splits = static_cast<int>(
        std::bit_ceil<unsigned>(kv_splits_of((std::max(c.longest, 1) - 1) / kPageTokens + 1)));
  return shape;
}

Status CudaStepOperator::run_part(const StepOperatorCall& call, int first_row, int rows, bool captures) {
  const StepShape shape = shape_of(call, first_row, rows);
  const StepLayout at = layout_of(shape);
  const Tiling tiling = backend_.tiling();
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  RETURN_IF_ERROR(pack_step({.call = call,
                             .first_row = first_row,
                             .rows = rows,
                             .vocab = config_.vocab,
                             .pages = pages_,
                             .pitch = pitch_,
                             .table_pages = table_pages_,
                             .most_decode_rows = tiling.most_decode_rows,
                             .tile_tokens = tiling.tokens,
                             .only_decodes = shape.decode_tiles == rows,
                             .inputs = backend_.packed_inputs(),
                             .tokens = at.tokens,
                             .positions = at.positions,
                             .slots = {at.full_slots, at.window_slots},
                             .decode_tiles = at.decode_tiles,
                             .prefill_tiles = at.prefill_tiles,
                             .tables = at.pages,
                             .fault = backend_.fault_word(),
                             .spoiled = spoiled_.as<int>(),
                             .caches = caches_on_device_.as<GivenCache>(),
                             .layers = config_.layers,
                             .half_bytes = static_cast<int>(page_bytes())},
                            stream));
  auto* const out = static_cast<std::byte*>(call.out) + int64_t{2} * first_row * config_.hidden;
  const Status status = backend_.run_packed(shape, captures, out, stream);
  // Nobody will be told of values in the cache that are not finite.
  if (!status.ok()) cudaMemsetAsync(spoiled_.as<int>(), 1, sizeof(int), stream);
  return status;
}

Status CudaStepOperator::report_fault(cudaStream_t stream) {
  const int code = backend_.fault();
  if (code == 0) return {};
  Status fault = backend_.forget_fault(stream);
  if (code < 0) return fault;
  // The word that pack_step() would have seen is gone.
  RETURN_IF_ERROR(check(cudaMemsetAsync(spoiled_.as<int>(), 1, sizeof(int), stream), "step"));
  if (!std::exchange(warned_, true)) notice(fmt::format("step: {}", fault.message()));
  return {};
}

Status CudaStepOperator::run(const StepOperatorCall& call) {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(check_call(call));
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  RETURN_IF_ERROR(check(cudaStreamIsCapturing(stream, &capture), "step"));
  const bool captured = capture != cudaStreamCaptureStatusNone;
  if (captured) {
    // The tiles of longer sequences differ from step to step.
    if (call.rows > options_.max_rows || shape_of(call, 0, call.rows).prefill_tiles > 0)
      return invalid("step: a captured one has at most {} rows, and {} of a sequence", options_.max_rows,
                     backend_.tiling().most_decode_rows);
  } else {
    RETURN_IF_ERROR(report_fault(stream));
    if (options_.graphs && std::exchange(out_, call.out) != call.out) RETURN_IF_ERROR(backend_.drop_graphs());
  }
  const bool captures = options_.graphs && !captured && call.rows <= options_.max_rows;
  for (int first = 0; first < call.rows; first += options_.max_rows)
    RETURN_IF_ERROR(run_part(call, first, std::min(options_.max_rows, call.rows - first), captures));
  return {};
}

Status CudaStepOperator::logits(const void* hidden, int rows, float* out, void* stream) {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  if (rows > 0 && (hidden == nullptr || out == nullptr)) return invalid("step: hidden or logits are missing");
  for (int first = 0; first < rows; first += options_.max_rows) {
    const auto* const from = static_cast<const std::byte*>(hidden) + int64_t{2} * first * config_.hidden;
    RETURN_IF_ERROR(backend_.logits_of(from, std::min(options_.max_rows, rows - first),
                                       out + int64_t{first} * config_.vocab,
                                       static_cast<cudaStream_t>(stream)));
  }
  return {};
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<StepOperator>> prepare_step(const StepOperatorOptions& options,
                                                   const ModelConfig& config, const ModelWeights& weights) {
  if (options.max_rows < 1 || options.max_sequences < 1 || options.max_context < 1 ||
      options.max_context > (1 << 24))
    return invalid("step: {} rows, {} sequences, contexts of {} tokens", options.max_rows,
                   options.max_sequences, options.max_context);
  RETURN_IF_ERROR(check_cuda_device("step", options.device));
  auto made = std::make_unique<cuda::CudaStepOperator>(options);
  RETURN_IF_ERROR(made->prepare(config, weights));
  return std::unique_ptr<StepOperator>(std::move(made));
}

}  // namespace moesaic
