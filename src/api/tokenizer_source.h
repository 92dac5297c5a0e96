// The tokenizer that belongs to a checkpoint.
#pragma once

#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace moesaic {

// kNotFound, with what to do, where the checkpoint has none.
Result<Tokenizer> tokenizer_of(const Checkpoint& checkpoint);

}  // namespace moesaic
