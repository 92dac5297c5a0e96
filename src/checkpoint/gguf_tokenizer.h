// The tokenizer in GGUF's terms.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"

namespace moesaic {

// Moves tokens, merges, types and the pattern's name out of the metadata; what is not there stays empty.
TokenizerSource take_gguf_tokenizer(GgufFile& file, const ModelConfig& config);

// tokens, merges and types from GGUF as they are, or from a tokenizer.json, whose vocabulary is already in
// the byte-to-unicode spelling; ids below `vocab` that it does not name become reserved tokens. `pre` is then
// empty where it splits text by another pattern than gpt-oss's.
Result<TokenizerSource> gguf_tokenizer(const TokenizerSource& source, int vocab);

}  // namespace moesaic
