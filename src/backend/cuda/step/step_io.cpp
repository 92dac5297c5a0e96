#include "backend/cuda/step/step_io.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace moesaic::cuda {

SampledToken token_of(const SampleResult& result) {
  SampledToken out{.token = result.token};
  if (result.likeliest < 0) return out;
  out.logprobs.logprob = result.logit - result.normalizer;
  for (const SampleResult::Entry& entry : std::span(result.top).first(result.likeliest))
    out.logprobs.top.emplace_back(entry.token, entry.logit - result.normalizer);
  return out;
}

namespace {

// Bytes of edits that are sent at once: 300 masks of 201,088 tokens. One row always fits.
constexpr size_t kEditBytes = size_t{8} << 20;
size_t edit_bytes(size_t vocab) {
  return std::max(kEditBytes,
                  sizeof(RowEdits::Row) + vocab * sizeof(EditedToken) + (vocab + 63) / 64 * sizeof(uint64_t));
}

}  // namespace

StepIo::~StepIo() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

Status StepIo::open(int max_rows, int vocab) {
  max_rows_ = max_rows, vocab_ = vocab;
  ASSIGN_OR_RETURN(host_logits_, PinnedBuffer::allocate(2 * kHostRows * vocab_ * sizeof(float)));
  for (PinnedBuffer& packed : packed_edits_) {
    ASSIGN_OR_RETURN(packed, PinnedBuffer::allocate(edit_bytes(vocab_)));
  }
  ASSIGN_OR_RETURN(edits_, DeviceBuffer::allocate(edit_bytes(vocab_), "logit edits"));
  ASSIGN_OR_RETURN(sampled_tokens_, DeviceBuffer::allocate(max_rows * sizeof(int32_t), "sampled tokens"));
  ASSIGN_OR_RETURN(results_,
                   PinnedBuffer::allocate(2 * static_cast<size_t>(max_rows) * sizeof(SampleResult)));
  for (cudaEvent_t& event : events_) {
    if (event == nullptr)
      RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"));
  }
  return {};
}

Status StepIo::grow(size_t count) {
  const size_t bytes = count * sizeof(int32_t);
  inputs_ = {};
  for (PinnedBuffer& packed : packed_) {
    ASSIGN_OR_RETURN(packed, PinnedBuffer::allocate(bytes));
  }
  ASSIGN_OR_RETURN(inputs_, DeviceBuffer::allocate(bytes, "step inputs"));
  return {};
}

Status StepIo::send(const StepShape& shape, const StepLayout& at, std::vector<int32_t>& packed,
                    cudaStream_t stream) {
  MOESAIC_CHECK(in_flight_ < 2);
  packed[at.result_buffer] = static_cast<int32_t>(sampling_steps_ % 2);
  auto* place = packed_[steps_++ % 2].as<int32_t>();
  std::memcpy(place, packed.data(), packed.size() * sizeof(int32_t));
  return copy_step_inputs({.packed = place,
                           .count = static_cast<int>(packed.size()),
                           .inputs = inputs_.as<int32_t>(),
                           .sampled_tokens = sampled_tokens_.as<int32_t>(),
                           .tokens = at.tokens,
                           .token_sources = at.token_sources,
                           .rows = shape.rows},
                          stream);
}

Status StepIo::move_on(const StepLayout& at, const PackedContinuations& continuations,
                       const int32_t* accepted, const int32_t* drafts, cudaStream_t stream) {
  MoveOn p = move_on_inputs(at, continuations, inputs_.as<int32_t>());
  p.sampled = sampled_tokens_.as<int32_t>(), p.accepted = accepted, p.drafts = drafts;
  return cuda::move_on(p, stream);
}

Status StepIo::sample(const StepShape& shape, const StepLayout& at, const float* logits, int vocab, int ctas,
                      const int* fault, cudaStream_t stream) {
  return cuda::sample({.logits = logits,
                       .rows = shape.logit_rows,
                       .vocab = vocab,
                       .sampling = reinterpret_cast<const DeviceSampling*>(input(at.sampling)),
                       .fault = fault,
                       .sampled_tokens = sampled_tokens_.as<int32_t>(),
                       .results = results_.as<SampleResult>(),
                       .result_buffer = input(at.result_buffer),
                       .stride = max_rows_},
                      ctas, stream);
}

Status StepIo::launched(const float* logits, std::span<const int32_t> host_rows, cudaStream_t stream) {
  MOESAIC_CHECK(std::ssize(host_rows) <= kHostRows);
  float* to = host_logits_.as<float>() + sampling_steps_ % 2 * kHostRows * vocab_;
  for (const int32_t row : host_rows) {
    RETURN_IF_ERROR(check(
        cudaMemcpyAsync(to, logits + row * vocab_, vocab_ * sizeof(float), cudaMemcpyDeviceToHost, stream),
        "logits"));
    to += vocab_;
  }
  ++in_flight_;
  return check(cudaEventRecord(events_[sampling_steps_++ % 2], stream), "step");
}

size_t packed_bytes(const EditedRow& row) {
  return sizeof(RowEdits::Row) + row.edits.tokens.size() * sizeof(EditedToken) +
         row.edits.allowed.size() * sizeof(uint64_t);
}

PackedEdits pack_edits(std::span<const EditedRow> rows, std::byte* out) {
  static_assert(sizeof(RowEdits::Row) % alignof(EditedToken) == 0);  // both have doubles
  size_t tokens = 0;
  for (const EditedRow& row : rows) tokens += row.edits.tokens.size();
  PackedEdits packed{.rows = static_cast<int>(rows.size()), .tokens = rows.size() * sizeof(RowEdits::Row)};
  packed.masks = packed.bytes = packed.tokens + tokens * sizeof(EditedToken);
  auto* row_out = reinterpret_cast<RowEdits::Row*>(out);
  auto* const first = reinterpret_cast<EditedToken*>(out + packed.tokens);
  EditedToken* token = first;
  for (const auto& [row, sampling, edits] : rows) {
    *row_out++ = {.row = row,
                  .first = static_cast<int32_t>(token - first),
                  .count = static_cast<int32_t>(edits.tokens.size()),
                  .allowed = edits.allowed.empty()
                                 ? -1
                                 : static_cast<int32_t>((packed.bytes - packed.masks) / sizeof(uint32_t)),
                  .sampling = sampling};
    for (const TokenEdit& edit : edits.tokens) *token++ = {.edit = edit, .logit = 0};
    const size_t bytes = edits.allowed.size() * sizeof(uint64_t);
    std::memcpy(out + packed.bytes, edits.allowed.data(), bytes);
    packed.bytes += bytes;
  }
  return packed;
}

RowEdits PackedEdits::at(std::byte* copy) const {
  return {.rows = reinterpret_cast<const RowEdits::Row*>(copy),
          .count = rows,
          .tokens = reinterpret_cast<EditedToken*>(copy + tokens),
          .allowed = reinterpret_cast<const uint32_t*>(copy + masks)};
}

Status StepIo::edit(const StepLayout& at, std::span<const EditedRow> rows, float* logits, int ctas,
                    const int* fault, const StepWait& wait, cudaStream_t stream) {
  MOESAIC_CHECK(in_flight_ > 0);
  const unsigned buffer = (sampling_steps_ - 1) % 2;
  while (!rows.empty()) {
    size_t count = 0, bytes = 0;
    while (count < rows.size() && bytes + packed_bytes(rows[count]) <= edits_.bytes())
      bytes += packed_bytes(rows[count++]);
    auto* const packed = packed_edits_[buffer].as<std::byte>();
    const PackedEdits sent = pack_edits(rows.first(count), packed);
    RETURN_IF_ERROR(
        check(cudaMemcpyAsync(edits_.as<void>(), packed, sent.bytes, cudaMemcpyHostToDevice, stream),
              "logit edits"));
    const RowEdits edits = sent.at(edits_.as<std::byte>());
    RETURN_IF_ERROR(edit_logits(logits, static_cast<int>(vocab_), edits, stream));
    RETURN_IF_ERROR(cuda::sample({.logits = logits,
                                  .vocab = static_cast<int>(vocab_),
                                  .fault = fault,
                                  .sampled_tokens = sampled_tokens_.as<int32_t>(),
                                  .results = results_.as<SampleResult>(),
                                  .result_buffer = input(at.result_buffer),
                                  .stride = max_rows_,
                                  .edits = edits},
                                 ctas, stream));
    rows = rows.subspan(count);
    if (!rows.empty()) RETURN_IF_ERROR(wait(stream, "logit edits"));
  }
  return check(cudaEventRecord(events_[buffer], stream), "step");
}

Result<int> StepIo::sampled(std::span<SampledToken> tokens, std::span<float> logits, const StepWait& wait) {
  MOESAIC_CHECK(std::ssize(tokens) <= max_rows_);
  if (in_flight_ == 0) return error(StatusCode::kInternal, "cuda: no sampling step is in flight");
  const unsigned result_buffer = (sampling_steps_ - in_flight_--) % 2;
  RETURN_IF_ERROR(wait(events_[result_buffer], "step"));
  const SampleResult* result = results_.as<SampleResult>() + static_cast<size_t>(result_buffer) * max_rows_;
  std::transform(result, result + tokens.size(), tokens.begin(), token_of);
  std::copy_n(host_logits_.as<float>() + result_buffer * kHostRows * vocab_, logits.size(), logits.begin());
  return result->fault;
}

}  // namespace moesaic::cuda
