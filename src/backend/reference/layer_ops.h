// The ops of a layer: its weights, its cache and the rows are arguments. The model's layers and the draft
// head's run through the same.
#pragma once

#include <span>
#include <vector>

#include "backend/layer_rows.h"
#include "backend/reference/attention.h"
#include "backend/reference/experts.h"

namespace moesaic::reference {

struct Layer {
  LayerShape shape;
  LayerWeights weights;  // a view without data: the layer has no such part
  LayerAdapter adapter;
  RopeTable rope;
  LayerCache cache;
  RankPlace rank = {};  // its shape and weights are this rank's
};

// A cache of zeros for `pages` pages, or kOutOfMemory.
Result<LayerCache> make_cache(const LayerShape& shape, int page_tokens, int pages);

// y = w x + bias. bias: without data, there is none.
std::vector<float> product(const MatrixView& w, const MatrixView& bias, std::span<const float> x,
                           const Precision& precision);

struct Qkv {
  std::vector<float> q, k, v;  // [rows, q_size | kv_size], q and k rotated
};
// x: normed activations. K and V of every row are put into the cache as well.
Qkv qkv(Layer& layer, std::span<const LayerRow> rows, std::span<const float> x, const Precision& precision);
// [rows, heads * head_dim of all ranks]
std::vector<float> attend(const Layer& layer, std::span<const LayerRow> rows, std::span<const float> q);
// out += the output projection of what attend() gives.
void project(const Layer& layer, std::span<const float> attended, std::span<float> out,
             const Precision& precision);

}  // namespace moesaic::reference
