// Tensors in formats without kernels become Q8_0 when a file is opened.
#pragma once

#include "checkpoint/tensor_map.h"

namespace moesaic {

// Replaces every matrix of a format of ggml_blocks.h by its values in Q8_0, in memory. Experts, which are
// most of a model, are left as they are: expert_formats.h. An error where they have no room.
Status widen(TensorMap& tensors);

// Tells people what widen() does, by format: "Q5_0 becomes Q8_0 (exact): 96 tensors, 0.57 GB become 0.88 GB".
std::vector<std::string> widened_formats(const std::vector<TensorInfo>& tensors);

}  // namespace moesaic
