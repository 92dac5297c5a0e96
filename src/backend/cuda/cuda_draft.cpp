#include "backend/cuda/cuda_draft.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/weights/upload.h"
#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic::cuda {

CudaDraftHead::~CudaDraftHead() {
  if (device_is_lost()) return;
  for (const Flight& flight : flights_) {
    for (const cudaEvent_t event : {flight.sent, flight.from, flight.done}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
}

// ---- loading ----

Status CudaDraftHead::load_weights(const Eagle3Weights& weights) {
  const DeviceGuard guard(shared_.options.device);
  RETURN_IF_ERROR(guard.status());
  Uploader up;
  RETURN_IF_ERROR(up.open(shared_.stream, {}));
  ASSIGN_OR_RETURN(weights_, load_draft_weights(config(), weights, shared_.options, up));
  RETURN_IF_ERROR(allocate(wanted(arena_, config()), "the draft head's activations"));
  RETURN_IF_ERROR(allocate_rounds(config(), kFirstLogitRows, first_rows()));
  if (copies_ == nullptr)
    RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "stream"));
  for (Flight& flight : flights_) {
    ASSIGN_OR_RETURN(flight.drafts, PinnedBuffer::allocate(arena_.drafts.bytes()));
    if (flight.sent == nullptr)
      RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&flight.sent, cudaEventDisableTiming), "event"));
    for (cudaEvent_t* event : {&flight.from, &flight.done}) {
      if (*event == nullptr)
        RETURN_IF_ERROR(check(cudaEventCreateWithFlags(event, cudaEventDefault), "event"));
    }
  }
  return {};
}

void CudaDraftHead::drop() {
  const DeviceGuard guard(shared_.options.device);
  weights_ = {}, arena_ = {}, buffers_ = {}, tapped_ = begun_ = false;
  most_logit_rows_ = most_rows_ = 0;
}

Status CudaDraftHead::set_taps(const std::vector<int>& boundaries) {
  RETURN_IF_ERROR(Eagle3DraftHead::set_taps(boundaries));
  tapped_ = false;
  const DeviceGuard guard(shared_.options.device);
  return shared_.retire_graphs();
}

int CudaDraftHead::rows_at_once() const { return std::min(shared_.rows_at_once, shared_.options.max_rows); }

int CudaDraftHead::first_rows() const { return shared_.options.max_rows + kFirstLogitRows * kMostDraft; }

std::vector<Wanted> CudaDraftHead::wanted(Arena& arena, const Eagle3Config& c) const {
  const size_t rows = rows_at_once(), features = c.features();
  return {{&arena.taps, shared_.options.max_rows * features * sizeof(float)},
          {&arena.fused, rows * features * 2},
          {&arena.joined, rows * 2 * c.hidden * 2},
          {&arena.q, rows * c.q_size() * 2},
          {&arena.fault, sizeof(int)},
          {&arena.accepted, shared_.options.max_rows * sizeof(int32_t)},
          {&arena.drafts, static_cast<size_t>(shared_.options.max_rows) * kMostDraft * sizeof(int32_t)}};
}

std::vector<Wanted> CudaDraftHead::wanted(RoundBuffers& b, const Eagle3Config& c, int logit_rows,
                                          int all_rows) const {
  const size_t n = logit_rows, in = std::max(rows_at_once(), logit_rows);
  const int taken_in = std::max(c.features(), 2 * c.hidden);
  return {
      {&b.rotation, static_cast<size_t>(all_rows) * (c.head_dim / 2) * sizeof(float2)},
      {&b.features, in * c.hidden * sizeof(float)},
      {&b.tiles, std::max(linear_tile_bytes(rows_at_once(), taken_in),
                          linear_tile_bytes(logit_rows, std::max({c.intermediate, c.q_size(), c.hidden})))},
      {&b.placed_q, n * c.q_size() * 2},
      {&b.attended, n * c.q_size() * 2},
      {&b.residual, n * c.hidden * sizeof(float)},
      {&b.normed, n * c.hidden * 2},
      {&b.output, n * c.hidden * sizeof(float)},
      {&b.middle, n * c.intermediate * 2},
      {&b.logits, n * c.draft_vocab * sizeof(float)},
      {&b.chosen, n * kMostDraft * sizeof(int32_t)},
      {&b.results, n * sizeof(SampleResult)}};
}

// Nothing may run.
Status CudaDraftHead::allocate_rounds(const Eagle3Config& config, int logit_rows, int all_rows) {
  buffers_ = {}, most_logit_rows_ = most_rows_ = 0;
  RETURN_IF_ERROR(allocate(wanted(buffers_, config, logit_rows, all_rows), "drafts"));
  ASSIGN_OR_RETURN(pinned_chosen_, PinnedBuffer::allocate(buffers_.chosen.bytes()));
  most_logit_rows_ = logit_rows, most_rows_ = all_rows;
  return {};
}

double CudaDraftHead::kv_token_bytes(const Eagle3Config& c) const {
  return 2.0 * static_cast<double>(kv_element_bytes()) * c.kv_size();
}

double CudaDraftHead::weight_bytes(const Eagle3Config& config, const Eagle3Weights& weights) const {
  Uploader counter;
  double bytes = 0;
  // load() refuses a head that cannot be counted.
  if (load_draft_weights(config, weights, shared_.options, counter).ok()) {
    for (const MemoryPart& part : counter.parts()) bytes += part.bytes;
  }
  Arena arena;
  RoundBuffers rounds;
  return bytes + sum(wanted(arena, config)) + sum(wanted(rounds, config, kFirstLogitRows, first_rows()));
}

// Zeros: places that were never written are wrong, but finite.
Status CudaDraftHead::allocate_cache() {
  Layer& layer = weights_.layer;
  layer.k = {}, layer.v = {};
  const size_t bytes = static_cast<size_t>(shared_.layout.full_pages) * kPageTokens *
                       static_cast<size_t>(config().kv_size()) * kv_element_bytes();
  ASSIGN_OR_RETURN(layer.k, DeviceBuffer::allocate(bytes, kDraftCachePart));
  ASSIGN_OR_RETURN(layer.v, DeviceBuffer::allocate(bytes, kDraftCachePart));
  return {};
}

// ---- beside a step ----

void CudaDraftHead::begin_step(const Batch& batch) {
  batch_ = batch;
  tapped_ = begun_ = false;
}

Status CudaDraftHead::tap(int boundary, const float* x, int rows, const DeferredResidual& deferred) {
  for (size_t i = 0; i < boundaries().size(); ++i) {
    if (boundaries()[i] != boundary) continue;
    RETURN_IF_ERROR(cuda::tap({.x = x,
                               .deferred = deferred,
                               .rows = rows,
                               .hidden = config().hidden,
                               .out = arena_.taps.as<float>() + i * config().hidden,
                               .stride = config().features()},
                              shared_.stream));
  }
  return {};
}

// ---- a draft ----

Status CudaDraftHead::draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) {
  RETURN_IF_ERROR(ready());
  if (!tapped_) return invalid("draft head: there was no step before");
  RETURN_IF_ERROR(validate(sequences, tokens.size(), batch_, config(), shared_.layout));
  if (sequences.empty()) return {};
  const DeviceGuard guard(shared_.options.device);
  RETURN_IF_ERROR(guard.status());
  host_chooses_ = !drafts_ahead();
  input_ = draft_input(sequences, batch_);
  ++drafts_;
  RETURN_IF_ERROR(make_room());
  RETURN_IF_ERROR(send());
  RETURN_IF_ERROR(run());
  RETURN_IF_ERROR(check(cudaEventRecord(flight().done, shared_.stream), "draft"));
  return tokens.empty() ? Status() : collect(sequences, tokens);
}

bool CudaDraftHead::drafts_ahead() const {
  return loaded() && !traced() && select(SampleShape{config().draft_vocab}, shared_.target).ok();
}

// Everything is given to the stream, and the next step may follow at once.
Result<int64_t> CudaDraftHead::begin_draft(std::span<const SequenceAhead> sequences) {
  RETURN_IF_ERROR(ready());
  if (!drafts_ahead())
    return invalid("draft head: this device, or a head that is traced, drafts behind a step");
  if (!tapped_ || step_.tokens == nullptr)
    return invalid("draft head: there was no step before that sampled");
  if (sequences.empty()) return invalid("draft head: no sequence to begin with");
  RETURN_IF_ERROR(validate(sequences, batch_, config(), shared_.layout));
  const DeviceGuard guard(shared_.options.device);
  RETURN_IF_ERROR(guard.status());
  host_chooses_ = false;
  input_ = draft_input(sequences, batch_);
  ++drafts_;
  RETURN_IF_ERROR(make_room());
  Flight& flight = this->flight();
  flight.wanted.clear();
  for (const SequenceAhead& d : sequences) flight.wanted.emplace_back(d.sequence, d.drafts);
  RETURN_IF_ERROR(check(cudaEventRecord(flight.from, shared_.stream), "draft"));
  RETURN_IF_ERROR(send());
  RETURN_IF_ERROR(hold());
  RETURN_IF_ERROR(run());
  RETURN_IF_ERROR(keep());
  begun_ = true;
  return drafts_;
}

Result<double> CudaDraftHead::finish_draft(int64_t begun, std::span<int32_t> tokens) {
  if (begun <= drafts_ - 2 || begun > drafts_) return invalid("draft head: draft {} is not begun", begun);
  const Flight& flight = flights_[static_cast<size_t>(begun) % 2];
  RETURN_IF_ERROR(shared_.wait(flight.done, "draft"));
  float milliseconds = 0;
  RETURN_IF_ERROR(check(cudaEventElapsedTime(&milliseconds, flight.from, flight.done), "draft"));
  auto at = tokens.begin();
  for (const auto& [sequence, drafts] : flight.wanted) {
    if (tokens.end() - at < drafts) return invalid("draft head: places for {} tokens only", tokens.size());
    const int32_t* const from = flight.drafts.as<int32_t>() + static_cast<size_t>(sequence) * kMostDraft;
    const auto end = std::copy(from, std::find(from, from + drafts, -1), at);
    std::fill(end, at + drafts, -1);
    at += drafts;
  }
  return milliseconds / 1000.0;
}

Status CudaDraftHead::hold() {
  HoldRows p{.tokens = step_.tokens,
             .positions = step_.positions,
             .sampled = step_.sampled,
             .moved = step_.moved,
             .inputs = flight().inputs.as<int32_t>(),
             .sequences = input_.begun,
             .count = static_cast<int>(flight().wanted.size()),
             .pages = input_.pages,
             .tokens_in = input_.rounds[0].tokens,
             .places = input_.rounds[0].places,
             .accepted = arena_.accepted.as<int32_t>()};
  for (size_t i = 0; i < input_.rounds.size(); ++i) {
    const DraftRoundInput& r = input_.rounds[i];
    p.rounds[i] = {input_.positions + r.first_row, r.slots, r.sampling, r.tiles};
  }
  return hold_rows(p, shared_.stream);
}

// The drafted tokens go to the next step and to the host.
Status CudaDraftHead::keep() {
  Flight& flight = this->flight();
  RETURN_IF_ERROR(keep_drafts({.inputs = flight.inputs.as<int32_t>(),
                               .sequences = input_.begun,
                               .count = static_cast<int>(flight.wanted.size()),
                               .chosen = chosen(0),
                               .stride = most_logit_rows_,
                               .ids = weights_.ids.as<int32_t>(),
                               .drafts = arena_.drafts.as<int32_t>(),
                               .host_drafts = flight.drafts.as<int32_t>()},
                              shared_.stream));
  return check(cudaEventRecord(flight.done, shared_.stream), "draft");
}

Status CudaDraftHead::run() {
  RETURN_IF_ERROR(rotate());
  return run_rounds();
}

// Buffers grow while nothing runs.
Status CudaDraftHead::make_room() {
  const int rows = std::max(1, input_.rounds[0].logit_rows);
  const size_t input_bytes = input_.packed.size() * sizeof(int32_t);
  const bool inputs = input_bytes > flight().inputs.bytes(),
             rounds = rows > most_logit_rows_ || input_.rows > most_rows_;
  if (inputs || rounds) RETURN_IF_ERROR(shared_.wait(shared_.stream, "draft"));
  if (inputs) {
    for (Flight& flight : flights_) {
      flight.inputs = {};
      // The inputs' size stands for both.
      ASSIGN_OR_RETURN(flight.packed, PinnedBuffer::allocate(2 * input_bytes));
      ASSIGN_OR_RETURN(flight.inputs, DeviceBuffer::allocate(2 * input_bytes, "the draft head's inputs"));
    }
  }
  if (rounds) {
    const auto grown = [](int before, int wanted) {
      return std::max(before, static_cast<int>(std::bit_ceil(static_cast<unsigned>(wanted))));
    };
    const int logit_rows = grown(most_logit_rows_, rows), all_rows = grown(most_rows_, input_.rows);
    RETURN_IF_ERROR(allocate_rounds(config(), logit_rows, all_rows));
  }
  if (host_chooses_ && pinned_logits_.bytes() < buffers_.logits.bytes()) {
    ASSIGN_OR_RETURN(pinned_logits_, PinnedBuffer::allocate(buffers_.logits.bytes()));
  }
  return {};
}

// The copy runs beside the step that may still be running, behind the last draft that read this buffer.
Status CudaDraftHead::send() {
  const size_t bytes = input_.packed.size() * sizeof(int32_t);
  Flight& flight = this->flight();
  RETURN_IF_ERROR(shared_.wait(flight.sent, "draft"));
  std::memcpy(flight.packed.as<void>(), input_.packed.data(), bytes);
  RETURN_IF_ERROR(check(cudaStreamWaitEvent(copies_, flight.done), "draft"));
  RETURN_IF_ERROR(check(cudaMemcpyAsync(flight.inputs.as<void>(), flight.packed.as<void>(), bytes,
                                        cudaMemcpyHostToDevice, copies_),
                        "draft"));
  RETURN_IF_ERROR(check(cudaEventRecord(flight.sent, copies_), "draft"));
  return check(cudaStreamWaitEvent(shared_.stream, flight.sent), "draft");
}

Status CudaDraftHead::rotate() {
  return rotations(input(input_.positions), input_.rows, weights_.inverse_frequency.as<double>(),
                   config().head_dim / 2, weights_.rope.attention_factor, buffers_.rotation.as<float2>(),
                   shared_.stream);
}

Eagle3DraftHead::RoundSize CudaDraftHead::size_of(int round) const {
  if (round >= std::ssize(input_.rounds)) return {};
  return {input_.rounds[round].rows, input_.rounds[round].logit_rows};
}

Status CudaDraftHead::fuse(const Part& part) {
  const bool bf16 = takes_bf16(weights_.fc.kind);
  const float factor = bf16 ? 1.0f : weights_.fc_factor;
  RETURN_IF_ERROR(fuse_taps({.taps = arena_.taps.as<float>(),
                             .sources = input(input_.rounds[part.round].sources + part.first),
                             .rows = part.rows,
                             .count = static_cast<int>(boundaries().size()),
                             .hidden = config().hidden,
                             .eps = static_cast<float>(config().rms_eps),
                             .factor = factor,
                             .input_norm = weights_.input_norm.as<float>(),
                             .fc_norms = weights_.fc_norms.as<float>(),
                             .out = arena_.fused.as<void>(),
                             .bf16 = bf16},
                            shared_.stream));
  return linear(
      weights_.fc, Activations{.x = arena_.fused.as<void>(), .factor = 1.0f / factor, .tokens = part.rows},
      Store{.out = buffers_.features.as<float>(), .stride = config().hidden, .rows = config().hidden},
      setup());
}

// The factor of the rows that join() leaves for Q, K and V.
float CudaDraftHead::joined_factor() const {
  return takes_bf16(weights_.layer.qkv.kind) ? 1.0f : weights_.joined_factor;
}

Status CudaDraftHead::join(const Part& part) {
  const DraftRoundInput& r = input_.rounds[part.round];
  // The features of the first round are those of the part alone.
  const int64_t first = part.round == 0 ? 0 : part.first;
  return join_inputs({.embed = raw_of(weights_.embed.cols > 0 ? weights_.embed : shared_.model.embed),
                      .tokens = input(r.tokens + part.first),
                      .features = buffers_.features.as<float>() + first * config().hidden,
                      .places = input(r.places + part.first),
                      .rows = part.rows,
                      .hidden = config().hidden,
                      .eps = static_cast<float>(config().rms_eps),
                      .factor = joined_factor(),
                      .embed_norm = weights_.embed_norm.as<float>(),
                      .hidden_norm = weights_.hidden_norm.as<float>(),
                      .normed_residual = config().norm_before_residual,
                      .out = arena_.joined.as<void>(),
                      .bf16 = takes_bf16(weights_.layer.qkv.kind),
                      .residual = buffers_.residual.as<float>()},
                     shared_.stream);
}

Status CudaDraftHead::qkv(const Part& part) {
  const DraftRoundInput& r = input_.rounds[part.round];
  const bool all = part.rows == r.rows && part.rows == r.logit_rows;
  const float2* const rotation = buffers_.rotation.as<float2>() +
                                 static_cast<int64_t>(r.first_row + part.first) * (config().head_dim / 2);
  RETURN_IF_ERROR(linear(
      weights_.layer.qkv,
      Activations{.x = arena_.joined.as<void>(), .factor = 1.0f / joined_factor(), .tokens = part.rows},
      qkv_of(weights_.layer, rotation, input(r.slots + part.first),
             (all ? buffers_.placed_q : arena_.q).as<__nv_bfloat16>()),
      setup()));
  // Decoding attention reads all pages but a row's last before the kernel before it has ended. Where a
  // sequence has several rows, this copy stands between it and the kernel that wrote them.
  if (all) return {};
  return place_rows({.from = arena_.q.as<void>(),
                     .places = input(r.places + part.first),
                     .rows = part.rows,
                     .width = config().q_size(),
                     .to = buffers_.placed_q.as<void>()},
                    shared_.stream);
}

Status CudaDraftHead::attend(int round, int logit_rows) {
  const DraftRoundInput& r = input_.rounds[round];
  const Attended attended = attended_in(weights_.layer, logit_rows, buffers_.attended.as<void>(), setup());
  Attention p =
      attention_of(weights_.layer, buffers_.placed_q.as<__nv_bfloat16>(), input(input_.pages), attended);
  p.tiles = reinterpret_cast<const RowTile*>(input(r.tiles)), p.tile_count = logit_rows;
  p.kv_splits = r.kv_splits;
  RETURN_IF_ERROR(cuda::attend(p, !shared_.target.batch_invariant, shared_.target, {}, shared_.stream));
  return project(weights_.layer, attended, buffers_.residual.as<float>(), setup());
}

Norm CudaDraftHead::norm_of_residual(const DeviceBuffer& weight, float factor, Kind next, int rows) const {
  return norm_of({.x = buffers_.residual.as<float>(),
                  .rows = rows,
                  .hidden = config().hidden,
                  .eps = static_cast<float>(config().rms_eps),
                  .out = buffers_.normed.as<void>(),
                  .fault = arena_.fault.as<int>(),
                  .code = 1},
                 weight, factor, next);
}

Status CudaDraftHead::mlp(int logit_rows) {
  const Layer& layer = weights_.layer;
  return dense_mlp(layer, norm_of_residual(layer.mlp_norm, layer.mlp_factor, layer.gate_up.kind, logit_rows),
                   buffers_.middle.as<void>(), setup());
}

Status CudaDraftHead::unembed(int logit_rows) {
  Norm n = norm_of_residual(weights_.norm, weights_.norm_factor, lm_head().kind, logit_rows);
  const Store out{
      .out = buffers_.logits.as<float>(), .stride = config().draft_vocab, .rows = config().draft_vocab};
  if (!config().norm_output) return linear(lm_head(), n, out, setup());
  n.out_f32 = buffers_.output.as<float>();
  RETURN_IF_ERROR(norm(n, shared_.stream));
  return linear(lm_head(), Activations{.x = n.out, .factor = 1.0f / n.factor, .tokens = logit_rows}, out,
                setup());
}

Status CudaDraftHead::choose(int round) {
  RETURN_IF_ERROR(host_chooses_ ? choose_on_host(round) : choose_on_device(round));
  return round + 1 < std::ssize(input_.rounds) ? begin_next(round) : Status();
}

Status CudaDraftHead::choose_on_device(int round) {
  const DraftRoundInput& r = input_.rounds[round];
  ASSIGN_OR_RETURN(const SampleConfig* const sampling,
                   select(SampleShape{config().draft_vocab}, shared_.target));
  return sample({.logits = buffers_.logits.as<float>(),
                 .rows = r.logit_rows,
                 .vocab = config().draft_vocab,
                 .sampling = reinterpret_cast<const DeviceSampling*>(input(r.sampling)),
                 .fault = input(input_.zero),
                 .sampled_tokens = chosen(round),
                 .results = buffers_.results.as<SampleResult>(),
                 .result_buffer = input(input_.zero)},
                sampling->ctas, shared_.stream);
}

Status CudaDraftHead::choose_on_host(int round) {
  const DraftRoundInput& r = input_.rounds[round];
  const auto width = static_cast<size_t>(config().draft_vocab), rows = static_cast<size_t>(r.logit_rows);
  RETURN_IF_ERROR(check(cudaMemcpyAsync(pinned_logits_.as<void>(), buffers_.logits.as<void>(),
                                        rows * width * sizeof(float), cudaMemcpyDeviceToHost, shared_.stream),
                        "draft"));
  RETURN_IF_ERROR(shared_.wait(shared_.stream, "draft"));
  int32_t* const to = pinned_chosen_.as<int32_t>() + (chosen(round) - chosen(0));
  for (const DraftInput::Drafted& d : input_.drafted) {
    if (d.round != round) continue;
    const std::span<const float> logits(pinned_logits_.as<float>() + static_cast<size_t>(d.place) * width,
                                        width);
    to[d.place] = choose_token(logits, target_ids(), d.sampling);
    if (traced()) traced()(d.sequence, logits);
  }
  return check(
      cudaMemcpyAsync(chosen(round), to, rows * sizeof(int32_t), cudaMemcpyHostToDevice, shared_.stream),
      "draft");
}

Status CudaDraftHead::begin_next(int round) {
  const DraftRoundInput& next = input_.rounds[round + 1];
  return next_round({.kept = input(next.sources),
                     .chosen = chosen(round),
                     .ids = host_chooses_ ? nullptr : weights_.ids.as<int32_t>(),
                     .from = (config().norm_output ? buffers_.output : buffers_.residual).as<float>(),
                     .rows = next.rows,
                     .hidden = config().hidden,
                     .tokens = flight().inputs.as<int32_t>() + next.tokens,
                     .features = buffers_.features.as<float>()},
                    shared_.stream);
}

// A sequence's drafts end with the first that could not be chosen.
Status CudaDraftHead::collect(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) {
  if (!host_chooses_) {
    RETURN_IF_ERROR(check(cudaMemcpyAsync(pinned_chosen_.as<void>(), chosen(0),
                                          input_.rounds.size() * most_logit_rows_ * sizeof(int32_t),
                                          cudaMemcpyDeviceToHost, shared_.stream),
                          "draft"));
    RETURN_IF_ERROR(shared_.wait(shared_.stream, "draft"));
  }
  for (const DraftInput::Drafted& d : input_.drafted) {
    const int32_t token =
        pinned_chosen_.as<int32_t>()[static_cast<size_t>(d.round) * most_logit_rows_ + d.place];
    tokens[d.token] = token < 0 || host_chooses_ ? token : target_ids()[static_cast<size_t>(token)];
  }
  auto at = tokens.begin();
  for (const DraftSequence& s : sequences) {
    const auto end = at + s.drafts;
    std::fill(std::find(at, end, -1), end, -1);
    at = end;
  }
  return {};
}

}  // namespace moesaic::cuda
