#include "backend/cuda/runtime/exchange.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace moesaic::cuda {

SampledToken token_of(const SampleResult& told) {
  SampledToken out{.token = told.token};
  if (told.likeliest < 0) return out;
  out.logprobs.logprob = told.logit - told.normalizer;
  for (const SampleResult::Entry& entry : std::span(told.top).first(told.likeliest))
    out.logprobs.top.emplace_back(entry.token, entry.logit - told.normalizer);
  return out;
}

Exchange::~Exchange() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

Status Exchange::open(int max_rows) {
  max_rows_ = max_rows;
  ASSIGN_OR_RETURN(drawn_, DeviceBuffer::allocate(max_rows * sizeof(int32_t), "drawn tokens"));
  ASSIGN_OR_RETURN(told_, PinnedBuffer::allocate(2 * static_cast<size_t>(max_rows) * sizeof(SampleResult)));
  for (cudaEvent_t& event : events_) {
    if (event == nullptr)
      RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"));
  }
  return {};
}

Status Exchange::grow(size_t count) {
  const size_t bytes = count * sizeof(int32_t);
  inputs_ = {};
  for (PinnedBuffer& packed : packed_) {
    ASSIGN_OR_RETURN(packed, PinnedBuffer::allocate(bytes));
  }
  ASSIGN_OR_RETURN(inputs_, DeviceBuffer::allocate(bytes, "step inputs"));
  return {};
}

Status Exchange::send(const StepShape& shape, const StepLayout& at, std::vector<int32_t>& packed,
                      cudaStream_t stream) {
  MOESAIC_CHECK(under_way_ < 2);
  packed[at.turn] = static_cast<int32_t>(draws_ % 2);
  auto* place = packed_[steps_++ % 2].as<int32_t>();
  std::memcpy(place, packed.data(), packed.size() * sizeof(int32_t));
  return feed({.packed = place,
               .count = static_cast<int>(packed.size()),
               .inputs = inputs_.as<int32_t>(),
               .drawn = drawn_.as<int32_t>(),
               .tokens = at.tokens,
               .sources = at.sources,
               .rows = shape.rows},
              stream);
}

Status Exchange::draw(const StepShape& shape, const StepLayout& at, const float* logits, int vocab,
                      const int* fault, cudaStream_t stream) {
  return cuda::draw({.logits = logits,
                     .rows = shape.logit_rows,
                     .vocab = vocab,
                     .how = reinterpret_cast<const Draw*>(input(at.draws)),
                     .fault = fault,
                     .drawn = drawn_.as<int32_t>(),
                     .told = told_.as<SampleResult>(),
                     .turn = input(at.turn),
                     .stride = max_rows_},
                    stream);
}

Status Exchange::launched(cudaStream_t stream) {
  ++under_way_;
  return check(cudaEventRecord(events_[draws_++ % 2], stream), "step");
}

Result<int> Exchange::sampled(std::span<SampledToken> tokens) {
  MOESAIC_CHECK(std::ssize(tokens) <= max_rows_);
  if (under_way_ == 0) return error(StatusCode::kInternal, "cuda: no step is under way");
  const unsigned turn = (draws_ - under_way_--) % 2;
  RETURN_IF_ERROR(check(cudaEventSynchronize(events_[turn]), "step"));
  const SampleResult* told = told_.as<SampleResult>() + static_cast<size_t>(turn) * max_rows_;
  std::transform(told, told + tokens.size(), tokens.begin(), token_of);
  return told->fault;
}

}  // namespace moesaic::cuda
