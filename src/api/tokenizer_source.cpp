#include "api/tokenizer_source.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace moesaic {

Result<Tokenizer> tokenizer_of(const Checkpoint& checkpoint) {
  const TokenizerSource& t = checkpoint.tokenizer;
  if (!t.json_path.empty()) return Tokenizer::from_hf_json(t.json_path);
  if (!t.tokens.empty()) return Tokenizer::from_gguf(t.tokens, t.merges, t.token_types, t.bos, t.eos, t.pre);
  return error(
      StatusCode::kNotFound,
      "the model has no tokenizer: put its tokenizer.json beside config.json, or give --tokenizer FILE "
      "(run, serve)");
}

Result<Tokenizer> tokenizer_for(const Checkpoint& checkpoint, const std::string& file) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, file.empty() ? tokenizer_of(checkpoint) : tokenizer_file(file));
  if (tokenizer.vocab_size() <= checkpoint.config.vocab) return tokenizer;
  return invalid("{} has {} tokens, the model {}: it is another model's",
                 file.empty() ? "the tokenizer" : file, tokenizer.vocab_size(), checkpoint.config.vocab);
}

Result<Tokenizer> tokenizer_file(const std::string& path) {
  if (path.ends_with(".json")) return Tokenizer::from_hf_json(path);
  if (path.ends_with(".tiktoken")) return Tokenizer::from_tiktoken(path);
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return error(StatusCode::kNotFound, "{}: no such file", path);
  return invalid("{}: neither a tokenizer.json nor a .tiktoken file", path);
}

}  // namespace moesaic
