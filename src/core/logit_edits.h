// Changes of a row's logits before its token is sampled: penalties, biases, and the tokens that a grammar, a
// list or a rule allows. A backend that can sample makes them on the device (Backend::edit_rows), so that a
// request that needs them goes on as fast as one that does not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.h"
#include "core/batch.h"

namespace moesaic {

// Adds `bias`, then divides a positive logit by `repetition` or multiplies another by it, then subtracts
// `penalty`.
struct TokenEdit {
  int32_t token = 0;
  float bias = 0;
  double repetition = 1;
  float penalty = 0;
};

inline constexpr float kMostEditedLogit = 3e38f;

// logit: finite. The result is finite too.
MOESAIC_HOST_DEVICE inline float edited(float logit, const TokenEdit& edit) {
  float v = logit + edit.bias;
  if (edit.repetition != 1.0) v = static_cast<float>(v > 0 ? v / edit.repetition : v * edit.repetition);
  v -= edit.penalty;
  return v > kMostEditedLogit ? kMostEditedLogit : v < -kMostEditedLogit ? -kMostEditedLogit : v;
}

struct LogitEdits {
  std::vector<TokenEdit> tokens;  // ascending, each token once
  // Bit i % 64 of word i / 64: token i may be sampled; at least one may. Empty: all may.
  std::vector<uint64_t> allowed;
};

// The row's token is sampled anew once its logits are changed. Log-probabilities stay those of the logits
// before.
struct EditedRow {
  int32_t row = 0;  // an index into Batch::logit_rows
  DeviceSampling sampling;
  LogitEdits edits;
};

// Makes the changes of the tokens' logits; a token that is not allowed gets -infinity. logits: finite, or
// -infinity, which stays.
void apply_edits(const LogitEdits& edits, std::span<float> logits);

}  // namespace moesaic
