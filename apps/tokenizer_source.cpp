#include "tokenizer_source.h"

#include "base/error.h"
#include "model_options.h"

namespace moesaic::app {

Result<Tokenizer> open_tokenizer(const std::string& model) {
  if (model.ends_with(".json") || model.ends_with(".tiktoken")) return tokenizer_file(model);
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model({.model = model}));
  return tokenizer_of(checkpoint);
}

}  // namespace moesaic::app
