// The two ends of a step: what the host packed comes in, with the tokens that the step before drew, and the
// tokens that this step draws go out. In between nothing waits for the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/batch.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

// Tokens that draw() can tell apart.
inline constexpr int kMostSampledVocab = 1 << 18;

// inputs = packed; then inputs[tokens + r] = drawn[inputs[sources + r]] for every row r whose source is not
// negative.
struct Feed {
  const int32_t* packed = nullptr;  // page-locked host memory
  int count = 0;                    // int32 of it
  int32_t* inputs = nullptr;
  const int32_t* drawn = nullptr;  // of the step before
  int tokens = 0, sources = 0;     // offsets in inputs
  int rows = 0;                    // 0: no row's token was drawn
};
Status feed(const Feed& p, cudaStream_t stream);

// What the host is told of a row.
struct SampleResult {
  struct Entry {
    int32_t token;
    float logit;
  };
  int32_t token, fault;
  int32_t likeliest;         // entries of top; -1: no log-probabilities, and nothing else is told
  float logit;               // of the token
  double normalizer;         // logit - normalizer is a log-probability
  Entry top[kMostLogprobs];  // likeliest first, the lower id of equals
};

// drawn[r] = the token drawn from row r of the logits by how[r] (core/batch.h), -1 if a logit is not finite.
// Eight thread blocks a row, which sum probabilities as integers: the same token whatever their order. A
// probability below 6e-11 of the likeliest token's counts as none. Reads the row two times at temperature 0,
// otherwise about 4 times and at most 20; once more for a log-probability, and for the likeliest two more
// times, at most seven.
struct SampleRows {
  const float* logits = nullptr;  // [rows, vocab]
  int rows = 0, vocab = 0;
  const Draw* how = nullptr;
  const int* fault = nullptr;
  int32_t* drawn = nullptr;
  SampleResult* told = nullptr;  // page-locked host memory, two times [stride]; *turn says which
  const int32_t* turn = nullptr;
  int stride = 0;
};
Status draw(const SampleRows& p, cudaStream_t stream);

}  // namespace moesaic::cuda
