// Tensors in formats without kernels, and q, k and v in several, are converted when a file is opened.
#pragma once

#include "checkpoint/tensor_map.h"
#include "core/weights.h"

namespace moesaic {

// Replaces every matrix of a format of ggml_blocks.h by its values in Q8_0, in memory. Experts, which are
// most of a model, are left as they are: expert_formats.h. An error where they have no room.
Status widen(TensorMap& tensors);

// Tells people what widen() does, by format: "Q5_0 becomes Q8_0 (exact): 96 tensors, 0.57 GB become 0.88 GB".
std::vector<std::string> widened_formats(const std::vector<TensorInfo>& tensors);

// Devices join a layer's q, k and v. Where a file has them in several formats they become BF16, in memory, if
// that holds all of their values, else F32. buffers: they keep the memory. Gives a line for people;
// empty: nothing was converted.
Result<std::string> unify_qkv(std::vector<LayerWeights>& layers, const std::string& file,
                              std::vector<Buffer>& buffers);

}  // namespace moesaic
