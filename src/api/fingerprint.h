// Tells models apart by what their weights say, not by their files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"

namespace moesaic {

// Hashes the sizes and constants, all of the vectors and adapters, samples of every layer's matrices, and
// rows of the embedding: a sample, or each of them where there is an adapter, which may bring others. Values
// are hashed as numbers: a model has the same hash from any file with the same values. Experts converted at
// load count as the file has them. more: what else changes K and V, such as formats. Rows that are sampled
// are read from the file again: not before the weights are loaded.
uint64_t fingerprint(const Checkpoint& checkpoint, std::string_view more);
// Names what the options and the backend change of K and V, for fingerprint(): the formats of weights, and
// with batch_invariant, which promises the same bits after a restart, how many layers' experts the host
// computes.
std::string kv_arithmetic(const std::string& dense, const std::string& moe_path, bool batch_invariant,
                          Backend& backend);

}  // namespace moesaic
