#include "tokenizer_source.h"

#include "base/error.h"
#include "model_options.h"

namespace moesaic::app {

Result<Tokenizer> tokenizer_of(const Checkpoint& checkpoint) {
  const TokenizerSource& t = checkpoint.tokenizer;
  if (!t.json_path.empty()) return Tokenizer::from_hf_json(t.json_path);
  if (!t.tokens.empty()) return Tokenizer::from_gguf(t.tokens, t.merges, t.token_types, t.bos, t.eos, t.pre);
  return error(StatusCode::kNotFound,
               "the model has no tokenizer: put its tokenizer.json beside config.json");
}

Result<Tokenizer> open_tokenizer(const std::string& model) {
  if (model.ends_with(".json")) return Tokenizer::from_hf_json(model);
  if (model.ends_with(".tiktoken")) return Tokenizer::from_tiktoken(model);
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model({.model = model}));
  return tokenizer_of(checkpoint);
}

}  // namespace moesaic::app
