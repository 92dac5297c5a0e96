// EAGLE3 heads as llama.cpp has them: a GGUF file of architecture "eagle3".
#pragma once

#include <memory>
#include <string>

#include "checkpoint/eagle3.h"
#include "checkpoint/gguf.h"

namespace moesaic {

struct Eagle3Gguf {
  Eagle3Config config;
  Eagle3Norms norms;
  std::shared_ptr<const TensorMap> tensors;  // by the names and in the order of Hugging Face's form
};

// Rows of q and k, which llama.cpp permutes for its RoPE, are put back; d2t, which has the target's tokens
// there, becomes what is to be added. name: for messages.
Result<Eagle3Gguf> eagle3_from_gguf(GgufFile file, const std::string& name, const ModelConfig& target);

}  // namespace moesaic
