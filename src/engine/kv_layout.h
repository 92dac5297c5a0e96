// How many pages of KV cache a number of sequences may need, and whether the machine's memory holds them.
#pragma once

#include "backend/backend.h"

namespace moesaic {

// sequences of up to `context` tokens each, in steps of at most max_rows rows.
struct KvDemand {
  int sequences = 1;
  int context = 0;  // tokens
  int max_rows = 512;
  int64_t kv_tokens = 0;      // that they may have together, at least one context; 0: a context for each
  bool prefix_cache = false;  // room for windows that nobody needs at the moment
};
// Windows are there for all sequences at once, rows of the step included. Fails where the pages cannot be
// counted.
Result<KvLayout> kv_layout(const ModelConfig& config, const KvDemand& demand);

// Before a model is loaded: the kv_tokens, from one context to a context for each sequence, that take at most
// half of the memory which the model leaves free. The rest is the machine's other work.
int64_t fitting_kv_tokens(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                          Backend& backend);

// Before a model is loaded: kOutOfMemory if it and such a cache do not fit, with what each part takes, what
// is free and what to change.
Status plan_memory(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                   Backend& backend);

// The same for the pages alone, once the model is loaded: where they are larger than what the machine has
// free, the system would grant them and end the program when they are used.
Status check_kv_memory(const KvLayout& layout, const ModelConfig& config, const Backend& backend);

}  // namespace moesaic
