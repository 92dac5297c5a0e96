// A step of the CUDA backend: its inputs go to the device, the ops run or are captured, what it leaves
// comes back.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

// Rows of a sequence that are attended to one by one: a draft of 7 tokens.
constexpr int kMostDecodeRows = 8;

}  // namespace

// One order of sums for all batches: single rows go where the others go, since the two kernels need not round
// alike.
Tiling CudaBackend::tiling() const {
  return {.tokens = tile_tokens(model_.config.heads, model_.config.kv_heads, model_.config.head_dim, target_),
          .most_decode_rows = target_.batch_invariant ? 0 : kMostDecodeRows};
}

Status CudaBackend::begin_step(const Batch& batch) {
  if (device_is_lost()) return lost_device();
  RETURN_IF_ERROR(lost_);
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(clear_kv());
  RETURN_IF_ERROR(validate(batch, model_.config, kv_layout_, options_.max_rows));
  const Tiling tiling = this->tiling();
  const bool continues = !batch.continuations.empty();
  const int32_t* const accepted = draft_head_.accepted();
  if (continues && accepted == nullptr) return invalid("batch: it goes on from a draft that was not begun");
  for (const Continuation& c : batch.continuations) {
    if (c.source >= std::ssize(first_wanted_))
      return invalid("batch: it goes on from sequence {}, the step before had {}", c.source,
                     first_wanted_.size());
  }
  if (draft_head_.loaded()) draft_head_.begin_step(batch);
  fault_status_ = Status();
  shape_ = shape_of(batch, tiling);
  host_rows_ = batch.host_rows;
  at_ = layout_of(shape_);
  const std::vector<PackedSequence> packed = pack(batch, shape_, tiling, packed_);
  continued_ = {};
  if (continues) continued_ = pack_continuations(batch, packed, first_wanted_, packed_);
  first_wanted_.clear();
  for (int s = 0; draft_head_.loaded() && s < shape_.sequences; ++s)
    first_wanted_.push_back(wanted_rows(batch, s).first);
  deferred_ = {};
  keys_ = window_keys_ = cached_ = window_cached_ = 0;
  for (const int position : batch.positions) {
    keys_ += position + 1;
    window_keys_ += std::min(position + 1, model_.config.window);
  }
  for (const Sequence& s : batch.sequences) {
    cached_ += s.context;
    window_cached_ += std::min(s.context, model_.config.window + s.rows - 1);
  }
  RETURN_IF_ERROR(make_room());
  ASSIGN_OR_RETURN(packed_[at_.epoch], ranks_.begin_step(input(at_.epoch), stream_));
  streams_ = streams(shape_.rows);
  if (streams_) RETURN_IF_ERROR(expert_stream_.begin());
  if (!streams_ && hot_.there()) RETURN_IF_ERROR(hot_.step(host_.use()));
  if (host_.experts() != nullptr && !streams_) packed_[at_.epoch] = host_.begin_step(input(at_.epoch));
  RETURN_IF_ERROR(step_io_.send(shape_, at_, packed_, stream_));
  if (continues) RETURN_IF_ERROR(step_io_.move_on(at_, continued_, accepted, draft_head_.drafts(), stream_));
  return begin_graph();
}

// A captured graph holds addresses: buffers grow only while no step runs, and then all graphs are dropped.
Status CudaBackend::make_room() {
  const int rows = shape_.logit_rows;
  const bool inputs = step_io_.lacks(packed_.size()),
             logits = lacks_room_ || logit_bytes(model_.config, rows) > logits_.bytes();
  if (!inputs && !logits) return {};
  lacks_room_ = true;
  RETURN_IF_ERROR(graphs_.retire("step", stream_));
  // Sequences may share pages, so the page tables' length is bounded only by the batch.
  if (inputs) RETURN_IF_ERROR(step_io_.grow(std::max(2 * packed_.size(), input_capacity_)));
  RETURN_IF_ERROR(
      logits ? allocate_logits(logit_bytes(model_.config, static_cast<int>(std::bit_ceil<unsigned>(rows))))
             : ranks_.meet());
  lacks_room_ = false;
  return {};
}

// Only decode steps are captured: prompts rarely have the same shape, nor have large batches some of whose
// sequences have drafts.
Status CudaBackend::begin_graph() {
  graphs_.skip();
  if (timed_) return timer_.begin(stream_, !streams_);
  const bool single = shape_.rows == shape_.sequences,
             few = shape_.prefill_tiles == 0 && shape_.rows <= kMostDecodeRows,
             decodes = single ? shape_.prefill_tiles == 0 || target_.batch_invariant : few;
  if (decodes && !streams_ && !options_.router_trace) graphs_.begin(shape_, stream_);
  return {};
}

void CudaBackend::embed() {
  timed(kEmbed, -1, static_cast<double>(shape_.rows) * model_.embed.row_bytes, 0, [&]() -> Status {
    RETURN_IF_ERROR(rotations(input(at_.positions), shape_.rows, model_.inverse_frequency.as<double>(),
                              model_.config.head_dim / 2, model_.rope.attention_factor,
                              rotation_.as<float2>(), stream_));
    RETURN_IF_ERROR(cuda::embed(raw_of(model_.embed), model_.embed.cols, input(at_.tokens), shape_.rows,
                                x_.as<float>(), stream_));
    return tap(0);
  });
}

Norm CudaBackend::norm_rows(int code, int rows, const DeferredResidual& deferred) {
  return {.x = x_.as<float>(),
          .rows = rows,
          .hidden = model_.config.hidden,
          .eps = static_cast<float>(model_.config.rms_eps),
          .out = normed_.as<void>(),
          .deferred = deferred,
          .fault = fault_.as<int>(),
          .code = code};
}

void CudaBackend::qkv(int index) {
  const Layer& layer = model_.layers[index];
  timed(kQkv, index, layer.qkv.bytes(), 2.0 * shape_.rows * layer.qkv.rows * layer.qkv.cols, [&]() -> Status {
    const int32_t* const slots = input(model_.config.sliding[index] ? at_.window_slots : at_.full_slots);
    return linear(layer.qkv,
                  norm_of(norm_rows(2 * index + 1, shape_.rows, std::exchange(deferred_, {})),
                          layer.attn_norm, layer.attn_factor, layer.qkv.kind),
                  qkv_of(layer, rotation_.as<float2>(), slots, q_.as<__nv_bfloat16>()), linear_setup());
  });
}

SpanScratch CudaBackend::span_scratch() {
  if (spans_.bytes() == 0) return {};
  return {.left = spans_.as<float>() + kMostSpanGroups,
          .floats = kSpanFloats,
          .rows = shape_.rows,
          .arrivals = spans_.as<int>()};
}

// The rows that the projection takes. Ranks gather plain ones.
Attended CudaBackend::attended(const Layer& layer) const {
  if (!ranks_.alone()) return {.data = attended_.as<void>(), .rows = shape_.rows};
  return attended_in(layer, shape_.rows, attended_.as<void>(), linear_setup());
}

void CudaBackend::attend(int index) {
  const Layer& layer = model_.layers[index];
  const bool sliding = model_.config.sliding[index];
  const double keys = sliding ? window_keys_ : keys_, cached = sliding ? window_cached_ : cached_;
  timed(kAttend, index, cached * 2 * kv_element_bytes() * layer.shape.kv_size(),
        keys * 4 * layer.shape.q_size(), [&]() -> Status {
          Attended out = attended(layer);
          if (!ranks_.alone()) out.data = attended_part_.as<void>();
          Attention p = attention_of(layer, q_.as<__nv_bfloat16>(), input(at_.pages), out);
          p.sliding = sliding;
          if (shape_.prefill_tiles > 0) {
            p.tiles = reinterpret_cast<const RowTile*>(input(at_.prefill_tiles)),
            p.tile_count = shape_.prefill_tiles;
            RETURN_IF_ERROR(cuda::attend(p, false, target_, span_scratch(), stream_));
          }
          if (shape_.decode_tiles > 0) {
            p.tiles = reinterpret_cast<const RowTile*>(input(at_.decode_tiles)),
            p.tile_count = shape_.decode_tiles;
            p.kv_splits = shape_.kv_splits;
            RETURN_IF_ERROR(cuda::attend(p, true, target_, {}, stream_));
          }
          return gather_attended();
        });
}

// Two values a word.
Status CudaBackend::gather_attended() {
  if (ranks_.alone()) return {};
  const ModelConfig& c = model_.config;
  const int kv_head_words = c.q_size() / c.kv_heads / 2, own = model_.layers[0].shape.q_size() / 2;
  return ranks_.gather(
      {.part = attended_part_.as<uint32_t>(),
       .part_stride = own,
       .whole = attended_of_,
       .width = c.q_size() / 2,
       .rows = shape_.rows,
       .columns = ranks_.columns(kv_head_words, [&](const RankShare& s) { return s.kv_heads(c.kv_heads); })},
      stream_);
}

void CudaBackend::project(int index) {
  const Layer& layer = model_.layers[index];
  timed(kProject, index, layer.o.bytes(), 2.0 * shape_.rows * layer.o.rows * layer.o.cols,
        [&] { return cuda::project(layer, attended(layer), x_of_, linear_setup(), ranks_); });
}

// Distinct experts that rows * top_k even choices hit.
double CudaBackend::expected_experts() const {
  const double experts = model_.config.experts;
  return experts * (1 - std::pow(1 - model_.config.experts_per_token / experts, shape_.rows));
}

double CudaBackend::moe_bytes(const Layer& layer) const {
  const double share = expected_experts() / model_.config.experts;
  return (layer.gate_up.bytes() + layer.down.bytes()) * share + static_cast<double>(layer.router.bytes());
}

double CudaBackend::moe_flops() const {
  const ModelConfig& c = model_.config;
  return 6.0 * shape_.rows * c.experts_per_token * c.hidden * c.intermediate / ranks_.share().ranks;
}

Norm CudaBackend::moe_norm(int index, const DeferredResidual& deferred) {
  const Layer& layer = model_.layers[index];
  return norm_of(norm_rows(2 * index + 2, shape_.rows, deferred), layer.mlp_norm, layer.mlp_factor,
                 model_.experts_at(index).gate_up.kind);
}

void CudaBackend::moe(int index) {
  timed(kMoe, index, moe_bytes(model_.layers[index]), moe_flops(), [&]() -> Status {
    if (model_.on_host(index) && !streams_) {
      const Norm norm = moe_norm(index, std::exchange(deferred_, {}));
      RETURN_IF_ERROR(moe_.run_on_host(model_, index, norm, host_, hot_, options_.router_trace, stream_));
      return tap(index + 1);
    }
    const bool comes = model_.on_host(index);
    if (comes) RETURN_IF_ERROR(expert_stream_.wait_for(index - model_.host_from));
    ASSIGN_OR_RETURN(deferred_,
                     moe_.run(model_, index, moe_norm(index, std::exchange(deferred_, {})),
                              moe_.config_for(model_, shape_.rows), target_, options_.router_trace, stream_));
    if (comes) RETURN_IF_ERROR(expert_stream_.leave(index - model_.host_from));
    // The others add to x by themselves, and have exchanged it.
    if (!ranks_.alone() && deferred_.expert_out != nullptr)
      RETURN_IF_ERROR(ranks_.gather_floats(x_of_, shape_.rows, model_.config.hidden,
                                           std::exchange(deferred_, {}), stream_));
    return tap(index + 1);
  });
}

void CudaBackend::unembed(std::span<float> logits) {
  logits_out_ = logits;
  const int rows = shape_.logit_rows;
  timed(kUnembed, -1, rows > 0 ? model_.head.bytes() : 0, 2.0 * rows * model_.head.rows * model_.head.cols,
        [&]() -> Status {
          // A step without logits copies the fault flag as well.
          if (rows > 0) {
            Norm last = norm_of(norm_rows(2 * model_.config.layers + 1, rows, std::exchange(deferred_, {})),
                                model_.final_norm, model_.final_factor, model_.head.kind);
            last.row_map = input(at_.logit_rows);
            RETURN_IF_ERROR(linear(model_.head, last,
                                   Store{.out = logits_.as<float>() + model_.head_rows.first,
                                         .stride = model_.config.vocab,
                                         .rows = static_cast<int>(model_.head_rows.count)},
                                   linear_setup()));
            RETURN_IF_ERROR(ranks_.gather_floats(logits_of_, rows, model_.config.vocab, {}, stream_));
            if (shape_.samples)
              return step_io_.sample(shape_, at_, logits_.as<float>(), model_.config.vocab, sample_ctas_,
                                     fault_.as<int>(), stream_);
          }
          return check(cudaMemcpyAsync(pinned_fault_.as<int>(), fault_.as<int>(), sizeof(int),
                                       cudaMemcpyDeviceToHost, stream_),
                       "logits");
        });
}

bool CudaBackend::ops_again() {
  const DeviceGuard guard(options_.device);
  if (graphs_.end_capture(shape_, fault_status_, stream_)) return false;
  fault_status_ = {}, deferred_ = {};
  ranks_.ops_again();
  return true;
}

Status CudaBackend::end_step() {
  const DeviceGuard guard(options_.device);
  Status launched = fault_status_;
  if (timed_) {
    const Status timed = timer_.finish(stream_, profile_);
    if (launched.ok()) launched = timed;
  }
  if (launched.ok()) launched = graphs_.launch(shape_, stream_);
  if (!launched.ok()) return abandoned(launched);
  RETURN_IF_ERROR(ranks_.end_step(stream_));
  CudaDraftHead::Step step;
  if (shape_.samples)
    step = {.tokens = input(at_.tokens),
            .positions = input(at_.positions),
            .sampled = step_io_.sampled_tokens(),
            .moved = continued_.count > 0 ? input(continued_.moved) : nullptr};
  draft_head_.end_step(step);
  if (shape_.samples) return step_io_.launched(logits_.as<float>(), host_rows_, stream_);
  RETURN_IF_ERROR(copy_logits());
  return fault_of(*pinned_fault_.as<int>());
}

// A step that was not launched whole may have left a fault, hand-overs that do not come, and lists and words
// of experts that no kernel has taken and cleared: the next step must not find them. Among ranks the others'
// words may still be on their way, and nobody knows how far each has come.
Status CudaBackend::abandoned(const Status& status) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream_, &capture);
  if (asked != cudaSuccess || capture != cudaStreamCaptureStatusNone) return status;  // nothing has run
  if (!ranks_.alone())
    return lost_ =
               error(StatusCode::kInternal, "{}: the device is lost; load the model again", status.message());
  if (!wait_(stream_, "step").ok()) return status;
  unclean_ = true;  // nobody will be told of a fault in it
  cudaMemsetAsync(fault_.as<int>(), 0, sizeof(int), stream_);
  static_cast<void>(host_.forget());
  static_cast<void>(moe_.reset(model_, stream_));
  return status;
}

// To the host, as many rows at a time as its buffer has. Waits for the step.
Status CudaBackend::copy_logits() {
  const std::span<float> buffer = step_io_.host_logits();
  size_t done = 0;
  do {
    const std::span<float> part =
        logits_out_.subspan(done, std::min(buffer.size(), logits_out_.size() - done));
    RETURN_IF_ERROR(check(cudaMemcpyAsync(buffer.data(), logits_.as<float>() + done, part.size_bytes(),
                                          cudaMemcpyDeviceToHost, stream_),
                          "logits"));
    RETURN_IF_ERROR(wait_(stream_, "step"));
    std::ranges::copy(buffer.first(part.size()), part.begin());
    done += part.size();
  } while (done < logits_out_.size());
  return {};
}

Status CudaBackend::sampled(std::span<SampledToken> tokens, std::span<float> logits) {
  const DeviceGuard guard(options_.device);
  ASSIGN_OR_RETURN(const int code, step_io_.sampled(tokens, logits, wait_));
  return fault_of(code);
}

// They are taken as others are, since a fault that one left would else be found in a later step.
Status CudaBackend::forget_steps() {
  Status fault;
  while (fault.ok() && step_io_.in_flight() > 0) fault = sampled({}, {});
  step_io_.forget();
  const Status cleared = clear_kv();
  return fault.ok() ? cleared : fault;
}

Status CudaBackend::edit_rows(std::span<const EditedRow> rows) {
  const DeviceGuard guard(options_.device);
  return step_io_.edit(at_, rows, logits_.as<float>(), sample_ctas_, fault_.as<int>(), wait_, stream_);
}

Status CudaBackend::fault_of(int code) {
  if (code == 0) return {};
  RETURN_IF_ERROR(wait_(stream_, "step"));
  step_io_.forget();
  RETURN_IF_ERROR(check(cudaMemsetAsync(fault_.as<int>(), 0, sizeof(int), stream_), "step"));
  unclean_ = true;
  lost_ = code == kRankAway ? error(StatusCode::kInternal, "{}", kRankAwayMessage) : meet_after_fault();
  RETURN_IF_ERROR(lost_);
  Status host = host_.forget();
  // A fault of any kind ends waits (patience.cuh). Ranks have cleared theirs before they met.
  if (ranks_.alone()) RETURN_IF_ERROR(moe_.reset(model_, stream_));
  if (code == kHostFailed) return host;
  if (code == kHostAway) return error(StatusCode::kInternal, "moe: {}", kHostAwayMessage);
  if (code == kGaveUp) return error(StatusCode::kInternal, "moe: {}", kGaveUpMessage);
  const int layer = (code - 1) / 2;
  const char* op = layer == model_.config.layers ? "unembed" : code % 2 == 1 ? "qkv" : "moe";
  return error(StatusCode::kInternal, "layer {} {}: an activation is NaN or infinite", layer, op);
}

// A row that is not finite has written such keys and values. Who gets their page next gives them weights of
// zero, and zero times NaN is NaN. Copiers of pages do not use this stream: none may be at work, and what
// they copy next must not be cleared.
Status CudaBackend::clear_kv() {
  if (!unclean_ || !lost_.ok() || device_is_lost()) return {};
  const DeviceGuard guard(options_.device);
  for (const Layer& layer : model_.layers) {
    for (const DeviceBuffer* each : {&layer.k, &layer.v}) {
      if (each->bytes() > 0)
        RETURN_IF_ERROR(
            check(cudaMemsetAsync(each->as<std::byte>(), 0, each->bytes(), stream_), "the KV cache"));
    }
  }
  RETURN_IF_ERROR(wait_(stream_, "step"));
  unclean_ = false;
  return {};
}

// Called by all ranks, since each has the whole of x and so the fault. They meet before the scratch memory is
// cleared, when nothing that they hand each other is still on its way, and again before anyone goes on.
Status CudaBackend::meet_after_fault() {
  if (ranks_.alone()) return {};
  RETURN_IF_ERROR(ranks_.meet());
  RETURN_IF_ERROR(moe_.reset(model_, stream_));
  RETURN_IF_ERROR(wait_(stream_, "step"));
  return ranks_.meet();
}

}  // namespace moesaic::cuda
