// Random weights of any gpt-oss shape, for tests and `verify`. Every number is a function of the seed, the
// tensor's Hugging Face name and the element's index alone, in integer and single IEEE operations, so that
// tools/golden/make_model_goldens.py makes the same model and no checkpoint needs to be stored.
//
// Element i of a tensor: h = mix(mix(seed ^ fnv1a(name)) + i), the sum of h's four low bytes less 510 (a bell
// of standard deviation 147.8), times the tensor's scale, plus its mean, rounded to BF16. Experts are then
// rounded to MXFP4, whatever format holds them, so that all expert formats hold the same numbers.
#pragma once

#include <cstdint>

#include "core/weights.h"

namespace moesaic {

struct RandomModelOptions {
  uint64_t seed = 1;
  Format dense = Format::kBF16;     // projections, embedding and head
  Format experts = Format::kMxfp4;  // kMxfp4: gate and up interleaved; kMxfp4Gguf: apart; kBF16: transposed
};

// The views' storage belongs to the returned weights. The config must be valid.
ModelWeights make_random_model(const ModelConfig& config, const RandomModelOptions& options);

}  // namespace moesaic
