// The tokenizer of anything that a user may name as a model.
#pragma once

#include <string>

#include "api/tokenizer_source.h"
#include "text/tokenizer.h"

namespace moesaic::app {

// model: what open_model takes, or a tokenizer.json or .tiktoken file.
Result<Tokenizer> open_tokenizer(const std::string& model);

}  // namespace moesaic::app
