// How many pages of KV cache a number of sequences may need, and whether the machine's memory holds them.
#pragma once

#include "backend/backend.h"

namespace moesaic {

// sequences of up to `context` tokens each, in steps of at most max_rows rows. Fails where the pages cannot
// be counted.
struct KvDemand {
  int sequences = 1;
  int context = 0;  // tokens
  int max_rows = 512;
  bool hold = false;  // KvPages::reserve is told to hold a window
};
Result<KvLayout> kv_layout(const ModelConfig& config, const KvDemand& demand);

// Bytes of all layers' pages.
double kv_bytes(const KvLayout& layout, const ModelConfig& config, const Backend& backend);

// kOutOfMemory if the pages are larger than the memory that the machine has free: the system would grant them
// and end the program when they are used.
Status check_kv_memory(const KvLayout& layout, const ModelConfig& config, const Backend& backend);

}  // namespace moesaic
