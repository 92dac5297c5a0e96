// Every op of a backend against the reference on random weights. The ops of the interface hide their
// activations, so each case is a model of one layer in which only the op under test adds to the residual and
// only its weights have the format under test; everything else is F32, which adds no noise of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace moesaic {

struct VerifyCase {
  std::string op;     // "embed+unembed", "qkv", "attend", "project", "moe", "model", "chunks", "singly"
  std::string shape;  // format, sizes and tokens, for a person
  // rms of the difference from the reference over a row of logits, in the worst row, as a share of the rms of
  // what the op adds to the logits.
  double error = 0;
  double tolerance = 0;  // derived from the format's rounding, see verify.cpp
  bool ok = false;
};

// Makes the backend under test: every case loads its own weights.
using BackendFactory = std::function<Result<std::unique_ptr<Backend>>()>;

struct VerifyOptions {
  bool quick = false;  // small shapes only, a second or two; else odd shapes and a layer of the 20b's size
  int chunk = 512;     // rows of a step, at most the backend's max_rows
  uint64_t seed = 1;
  int ranks = 1;                 // the backend's; every shape has room for them
  KvFormat kv = KvFormat::kOwn;  // the backend's, which the reference gets as well
  // The same. Where it converts, only embed+unembed is compared: lm_head would round what the other ops add,
  // and an MX lm_head turns their last bits into steps of E4M3, as large as what they add.
  std::optional<Format> dense;
  std::function<void(const VerifyCase&)> report;  // called as each case ends; may be empty
  // The same with BackendOptions::batch_invariant, if it needs to be told: rows that come one at a time must
  // have the bits of the same rows in larger steps ("singly").
  BackendFactory invariant;
};

// Fails only if the backend cannot be made or run; a wrong result is a case that is not ok.
Result<std::vector<VerifyCase>> verify_ops(const BackendFactory& backend, const VerifyOptions& options);

// A whole loaded model: the same `tokens` random tokens through the backend, the second half one at a time,
// and the reference. The error is the KL divergence that three quarters of the rows of either half do not
// exceed: where two experts tie within the rounding, another is taken and a row differs by more. Rounding of
// activations keeps it below 1e-3, 10e-3 where those of quantised weights are int8 (cpu, experts in host
// memory) and 48e-3 where those of MX weights are MXFP8. Slow: the reference runs on one core.
Result<VerifyCase> verify_model(const ModelConfig& config, const ModelWeights& weights,
                                const BackendFactory& backend, int tokens, const VerifyOptions& options);

// rms of the difference over a row, in the worst row, relative to the rms of (reference - base) over all
// rows. All: [rows, vocab]. Infinite where got holds a NaN.
double worst_row_error(std::span<const float> got, std::span<const float> reference,
                       std::span<const float> base, int vocab);
// KL(softmax(p) || softmax(q)) of one row of logits.
double kl_divergence(std::span<const float> p, std::span<const float> q);

}  // namespace moesaic
