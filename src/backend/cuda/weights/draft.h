// A loaded draft head: weights in the orders that the kernels stream.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/layout/model.h"
#include "core/eagle3.h"

namespace moesaic::cuda {

class Uploader;  // upload.h

struct DraftWeights {
  DeviceBuffer input_norm, fc_norms, embed_norm, hidden_norm, norm;  // empty: the head has none
  Matrix fc;
  // It also has weights that the kernels take and a head does not have: biases of Q, K and V (0), of gate (0)
  // and of up (-1: their SwiGLU adds 1), and sinks to which nothing goes.
  Layer layer;
  Matrix head;  // without rows: the target's
  Table embed;  // without columns: the target's
  RopeTable rope;
  DeviceBuffer inverse_frequency;
  DeviceBuffer ids;  // [draft_vocab] the target's token of each
  // By what activations in F16 are multiplied: of fc, of Q, K and V, of lm_head.
  float fc_factor = 1, joined_factor = 1, norm_factor = 1;
};

// Uploads and repacks, or counts what that takes: as the uploader was made. The shapes must have been
// validated. An error for a head that the kernels do not take, a damaged tensor or lack of memory.
Result<DraftWeights> load_draft_weights(const Eagle3Config& config, const Eagle3Weights& weights,
                                        const BackendOptions& options, Uploader& up);

}  // namespace moesaic::cuda
