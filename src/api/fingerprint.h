// Tells models apart by what their weights say, not by their files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"

namespace moesaic {

// A hash of the sizes and constants, of the vectors and adapters whole, of samples of every layer's matrices,
// and of the embedding's rows, all of them beside an adapter, which may bring others; as numbers: a model has
// the same one whichever file it is read from, if that holds the same values. Experts that are converted at
// load count as the file has them. more: what else changes K and V, such as formats. Rows that are sampled
// are read from the file again: not before the weights are loaded.
uint64_t fingerprint(const Checkpoint& checkpoint, std::string_view more);
// Names what the options and the backend change of K and V, for fingerprint(): the formats of weights, and
// with batch_invariant, which promises the same bits after a restart, how many layers' experts the host
// computes.
std::string kv_arithmetic(const std::string& dense, const std::string& moe_path, bool batch_invariant,
                          Backend& backend);

}  // namespace moesaic
