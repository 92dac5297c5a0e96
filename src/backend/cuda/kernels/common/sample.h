// The first and the last kernel of a step that samples on the device. The first copies what the host packed,
// with the tokens that the previous step sampled; the last samples this step's tokens. Nothing in between
// waits for the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/batch.h"
#include "core/logit_edits.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

// The largest vocabulary that sample() takes.
inline constexpr int kMostSampledVocab = 1 << 18;
inline constexpr int kSampleCluster = 8;  // CTAs of a row, where there are clusters

// inputs = packed; then inputs[tokens + r] = sampled_tokens[inputs[token_sources + r]] for every row r whose
// source is not negative.
struct StepInputs {
  const int32_t* packed = nullptr;  // page-locked host memory
  int count = 0;                    // int32 of it
  int32_t* inputs = nullptr;
  const int32_t* sampled_tokens = nullptr;  // the previous step's
  int tokens = 0, token_sources = 0;        // offsets in inputs
  int rows = 0;                             // 0: no row has such a token
};
Status copy_step_inputs(const StepInputs& p, cudaStream_t stream);

// A row's result for the host.
struct SampleResult {
  struct Entry {
    int32_t token;
    float logit;
  };
  int32_t token, fault;
  int32_t likeliest;         // entries of top; -1: no log-probabilities; the rest is not set
  float logit;               // the token's
  double normalizer;         // logit - normalizer is a log-probability
  Entry top[kMostLogprobs];  // likeliest first, the lower id of equals
};

// Changes of logits (core/logit_edits.h), in device memory.
struct EditedToken {
  TokenEdit edit;
  float logit;  // written on the device: before the change
};
struct RowEdits {
  struct Row {
    int32_t row = 0;               // row of the logits
    int32_t first = 0, count = 0;  // its tokens, ascending
    int32_t allowed = -1;          // the first word of its mask, of 32 tokens each; -1: all are allowed
    DeviceSampling sampling;
  };
  const Row* rows = nullptr;
  int count = 0;  // rows
  EditedToken* tokens = nullptr;
  const uint32_t* allowed = nullptr;
};
// Changes the logits in place: a token that is not allowed gets the least float. What is not finite stays.
Status edit_logits(float* logits, int vocab, const RowEdits& edits, cudaStream_t stream);

// sampled_tokens[r] = the token sampled from row r of the logits by sampling[r] (core/batch.h), -1 if a logit
// is not finite. ctas: how many work on a row, kSampleCluster or 1. They sum probabilities as integers: the
// same token whatever their order and number. A probability below 6e-11 of the likeliest token's counts as
// none. Reads the row two times at temperature 0, otherwise about 4 times and at most 20; once more for a
// log-probability, and for the likeliest two more times, at most seven.
struct SampleRows {
  const float* logits = nullptr;  // [rows, vocab]
  int rows = 0, vocab = 0;
  const DeviceSampling* sampling = nullptr;
  const int* fault = nullptr;
  int32_t* sampled_tokens = nullptr;
  SampleResult* results = nullptr;         // page-locked host memory, two buffers [stride]
  const int32_t* result_buffer = nullptr;  // which of them
  int stride = 0;
  // If there are any, only their rows are sampled, after edit_logits(). The rows were sampled before: of the
  // log-probabilities that this left, only the token's own logit changes.
  RowEdits edits = {};
};
Status sample(const SampleRows& p, int ctas, cudaStream_t stream);

}  // namespace moesaic::cuda
