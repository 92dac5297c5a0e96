// The graph of gpt-oss, written once for all backends.
#pragma once

#include <span>

#include "backend/backend.h"

namespace moesaic {

// Runs one step. logits: [batch.logit_rows, vocab], row i for batch.logit_rows[i]; none if the
// batch has rows to sample, whose tokens Backend::sampled gives. The batch must satisfy
// validate(batch, ...) in core/batch.h's terms; a backend checks it in begin_step and answers with a Status.
Status forward(Backend& backend, const ModelConfig& config, const Batch& batch, std::span<float> logits);

}  // namespace moesaic
