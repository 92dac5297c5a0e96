// Random weights of the true shapes, for benchmarks.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/eagle3.h"

namespace moesaic {

// text: NAME[,layers=N][,experts=N][,vocab=N][,dense=bf16|q8_0|mxfp8][,zipf=S], NAME as in published_config.
// zipf: routers' biases make the chances of experts fall about as 1 / rank^S, the ranks of each layer in an
// order of its own; without it they are even. All
// tensors are overlapping views of a few random pools (some 200 MB together), so that a 63 GB model needs no
// 63 GB source; what a backend packs is varied all the same: no two rows of a tensor begin at the same place.
Result<Checkpoint> make_dummy(const std::string& text);

// A draft head of the public heads' sizes (64 query and 8 KV heads of 64, an MLP of 17280, 32,000 draft
// tokens), in BF16, for a target of any size. options: "" or "intermediate=N", "draft_vocab=N", joined by
// commas.
Result<Eagle3Head> make_dummy_head(const std::string& options, const ModelConfig& target);

}  // namespace moesaic
