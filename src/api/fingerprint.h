// Tells models apart by what their weights say, not by their files.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace moesaic {

// Of the sizes and of samples of every layer's tensors, as numbers: a model has the same one whichever file
// it is read from, if that holds the same values. more: what else changes K and V, such as formats.
Result<uint64_t> fingerprint(const Checkpoint& checkpoint, std::string_view more);

}  // namespace moesaic
