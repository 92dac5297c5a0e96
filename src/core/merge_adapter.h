// A layer with its LoRA adapter added into its matrices, W + up down, for devices whose kernels take one
// matrix and nothing beside it.
//
// What an adapter reaches becomes BF16, whatever it was stored in, so nothing is quantised a second time: the
// one rounding is to 8 bits, those of a BF16 checkpoint and of the activations that such a device multiplies
// with (docs/design/numerics.md).
#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "core/weights.h"

namespace moesaic {

struct MergedLayer {
  LayerWeights weights;
  std::vector<Buffer> storage;  // the matrices that were merged
};
// The sums are taken in F32. Fails for lack of memory.
Result<MergedLayer> merge_adapter(const LayerWeights& w, const LayerAdapter& adapter, ThreadPool& pool);

// As merge_adapter() will leave the layer, to count what it takes: formats and sizes are right, the data is
// not to be read.
LayerWeights merged_formats(const LayerWeights& w, const LayerAdapter& adapter);
// The same of all layers.
ModelWeights merged_formats(const ModelWeights& weights);

}  // namespace moesaic
