#include "api/tokenizer_source.h"

#include "base/error.h"

namespace moesaic {

Result<Tokenizer> tokenizer_of(const Checkpoint& checkpoint) {
  const TokenizerSource& t = checkpoint.tokenizer;
  if (!t.json_path.empty()) return Tokenizer::from_hf_json(t.json_path);
  if (!t.tokens.empty()) return Tokenizer::from_gguf(t.tokens, t.merges, t.token_types, t.bos, t.eos, t.pre);
  return error(StatusCode::kNotFound,
               "the model has no tokenizer: put its tokenizer.json beside config.json");
}

Result<Tokenizer> tokenizer_file(const std::string& path) {
  if (path.ends_with(".json")) return Tokenizer::from_hf_json(path);
  if (path.ends_with(".tiktoken")) return Tokenizer::from_tiktoken(path);
  return invalid("{}: neither a tokenizer.json nor a .tiktoken file", path);
}

}  // namespace moesaic
