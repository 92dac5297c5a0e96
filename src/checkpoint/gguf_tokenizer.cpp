#include "checkpoint/gguf_tokenizer.h"

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/mapped_file.h"

namespace moesaic {
namespace {

constexpr int kNormal = 1, kControl = 3;  // GGUF's token types

// The member, or null where the object or the member is not there.
Json member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : Json();
}

void add_token(TokenizerSource& out, const std::string& token, const Json& id, int type) {
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= std::ssize(out.tokens)) return;
  out.tokens[id.get<size_t>()] = token, out.token_types[id.get<size_t>()] = type;
}

// A merge is "left right" or ["left", "right"].
void add_merge(TokenizerSource& out, const Json& merge) {
  if (merge.is_string()) out.merges.push_back(merge);
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    out.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
}

}  // namespace

Result<TokenizerSource> gguf_tokenizer(const TokenizerSource& source, int vocab) {
  if (source.json_path.empty()) return source;
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(source.json_path));
  const auto bytes = file->bytes();
  ASSIGN_OR_RETURN(const Json json,
                   parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, source.json_path));
  const Json model = member(json, "model"), vocabulary = member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty())
    return invalid("{}: it has no model.vocab", source.json_path);
  TokenizerSource out{.bos = source.bos, .eos = source.eos};
  for (int i = 0; i < vocab; ++i) out.tokens.push_back(fmt::format("<|reserved_{}|>", i));
  out.token_types.assign(static_cast<size_t>(vocab), kControl);
  for (const auto& [token, id] : vocabulary.items()) add_token(out, token, id, kNormal);
  for (const Json& added : member(json, "added_tokens")) {
    if (const Json content = member(added, "content"); content.is_string())
      add_token(out, content, member(added, "id"), kControl);
  }
  for (const Json& merge : member(model, "merges")) add_merge(out, merge);
  return out;
}

}  // namespace moesaic
