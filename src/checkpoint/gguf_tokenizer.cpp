#include "checkpoint/gguf_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/mapped_file.h"
#include "core/o200k_pattern.h"

namespace moesaic {
namespace {

constexpr int kNormal = 1, kControl = 3, kUserDefined = 4;  // GGUF's token types

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

// True if the pre-tokenizer has another pattern than o200k's, the only one of gpt-oss's that GGUF has a name
// for.
bool splits_otherwise(const Json& pre) {
  const Json &steps = member(pre, "pretokenizers"), one = Json::array({pre});
  return std::ranges::any_of(steps.is_array() ? steps : one, [](const Json& step) {
    const std::string pattern = string_or(member(step, "pattern"), "Regex", "");
    const bool own =
        string_or(step, "type", "") == "ByteLevel" && member(step, "use_regex") != false;  // GPT-2's
    return own || (!pattern.empty() && pattern != kO200kPattern);
  });
}

// Moves the value out; empty where there is none of this type.
template <typename T>
T take_metadata(GgufFile& file, const char* key) {
  const auto it = file.metadata.find(key);
  auto* value = it == file.metadata.end() ? nullptr : std::get_if<T>(&it->second);
  return value != nullptr ? std::move(*value) : T();
}

}  // namespace

TokenizerSource take_gguf_tokenizer(GgufFile& file, const ModelConfig& config) {
  using Strings = std::vector<std::string>;
  TokenizerSource t{.tokens = take_metadata<Strings>(file, "tokenizer.ggml.tokens"),
                    .merges = take_metadata<Strings>(file, "tokenizer.ggml.merges"),
                    .pre = take_metadata<std::string>(file, "tokenizer.ggml.pre"),
                    .chat_template = take_metadata<std::string>(file, "tokenizer.chat_template"),
                    .bos = config.bos_token,
                    .eos = config.eos_token};
  // Ollama's files name GPT-2's pattern, or none; the vocabulary is o200k all the same.
  if (file.written_by_ollama()) t.pre = "gpt-4o";
  for (const int64_t type : take_metadata<std::vector<int64_t>>(file, "tokenizer.ggml.token_type"))
    t.token_types.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, 0, 255)));
  return t;
}

Result<TokenizerSource> gguf_tokenizer(const TokenizerSource& source, int vocab) {
  if (source.json_path.empty()) return source;
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(source.json_path));
  const auto bytes = file->bytes();
  ASSIGN_OR_RETURN(const Json json,
                   parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, source.json_path));
  const Json &model = member(json, "model"), &vocabulary = member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty())
    return invalid("{}: it has no model.vocab", source.json_path);
  TokenizerSource out{.pre = splits_otherwise(member(json, "pre_tokenizer")) ? "" : "gpt-4o",
                      .bos = source.bos,
                      .eos = source.eos};
  for (int i = 0; i < vocab; ++i) out.tokens.push_back(fmt::format("<|reserved_{}|>", i));
  out.token_types.assign(static_cast<size_t>(vocab), kControl);
  for (const auto& [token, id] : vocabulary.items()) add_token(out, token, id, kNormal);
  for (const Json& added : member(json, "added_tokens")) {
    const bool text = member(added, "special") == false;
    if (const Json& content = member(added, "content"); content.is_string())
      add_token(out, content, member(added, "id"), text ? kUserDefined : kControl);
  }
  for (const Json& merge : member(model, "merges")) add_merge(out, merge);
  return out;
}

}  // namespace moesaic
