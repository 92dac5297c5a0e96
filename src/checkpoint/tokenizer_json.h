// The tokenizer of a GGUF file as Hugging Face's tokenizer.json.
#pragma once

#include "checkpoint/checkpoint.h"

namespace moesaic {

// Byte-level BPE with the o200k pattern; control and user-defined tokens become added special tokens. source
// has tokens. A vocabulary that JSON cannot hold (a token that stands twice or is not UTF-8) is an error.
Result<std::string> tokenizer_json(const TokenizerSource& source);

}  // namespace moesaic
