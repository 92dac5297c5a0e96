// The tokenizer in GGUF's terms.
#pragma once

#include "checkpoint/checkpoint.h"

namespace moesaic {

// tokens, merges and types from GGUF as they are, or from a tokenizer.json, whose vocabulary is already in
// the byte-to-unicode spelling; ids below `vocab` that it does not name become reserved tokens.
Result<TokenizerSource> gguf_tokenizer(const TokenizerSource& source, int vocab);

}  // namespace moesaic
