// The tokenizer that belongs to a checkpoint, or is given as a file.
#pragma once

#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace moesaic {

// kNotFound, with what to do, where the checkpoint has none.
Result<Tokenizer> tokenizer_of(const Checkpoint& checkpoint);

// Returns the file's tokenizer, or the checkpoint's own if `file` is empty. kInvalidArgument if the tokenizer
// has more tokens than the model, which could not read them: it is another model's.
Result<Tokenizer> tokenizer_for(const Checkpoint& checkpoint, const std::string& file);

// A tokenizer.json or .tiktoken file by its ending; kInvalidArgument for others.
Result<Tokenizer> tokenizer_file(const std::string& path);

}  // namespace moesaic
