#include "checkpoint/chat_files.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file_cache.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/json.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A file beside the source's tokenizer.json; empty where there is none.
Result<std::string> beside(const TokenizerSource& source, const char* name) {
  constexpr size_t kMost = 16 << 20;
  if (source.json_path.empty()) return std::string();
  const fs::path path = fs::path(source.json_path).parent_path() / name;
  std::error_code ignored;
  return fs::exists(path, ignored) ? read_whole(path.string(), kMost) : std::string();
}

Result<Json> tokenizer_config(const TokenizerSource& source) {
  ASSIGN_OR_RETURN(const std::string text, beside(source, "tokenizer_config.json"));
  if (text.empty()) return Json::object();
  ASSIGN_OR_RETURN(Json json, parse_json(text, "tokenizer_config.json"));
  return json.is_object() ? std::move(json) : Json::object();
}

// Made where the source has no such file: what AutoTokenizer needs to know.
std::string made_tokenizer_config(const ModelConfig& c, const std::vector<std::string>& tokens) {
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"clean_up_tokenization_spaces", false},
               {"model_input_names", {"input_ids", "attention_mask"}},
               {"model_max_length", c.max_context}};
  const std::pair<const char*, int> named[] = {
      {"bos_token", c.bos_token}, {"eos_token", c.eos_token}, {"pad_token", c.pad_token}};
  for (const auto& [key, id] : named)
    if (id >= 0 && id < std::ssize(tokens)) json[key] = tokens[static_cast<size_t>(id)];
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Harmony's ends of a turn, as OpenAI's own file lists them.
std::string made_generation_config(const ModelConfig& c, const std::vector<std::string>& tokens) {
  Json json = {{"do_sample", true}}, ends = Json::array();
  for (const char* const end : {"<|return|>", "<|endoftext|>", "<|call|>"}) {
    const auto at = std::ranges::find(tokens, end);
    if (at != tokens.end()) ends.push_back(at - tokens.begin());
  }
  if (ends.empty() && c.eos_token >= 0) ends.push_back(c.eos_token);
  if (!ends.empty()) json["eos_token_id"] = ends;
  if (c.bos_token >= 0) json["bos_token_id"] = c.bos_token;
  if (c.pad_token >= 0) json["pad_token_id"] = c.pad_token;
  return json.dump(2) + "\n";
}

// The template of GGUF's metadata or of a folder's files, as it stands there.
Result<std::string> stored_template(const TokenizerSource& source) {
  if (!source.chat_template.empty()) return source.chat_template;
  ASSIGN_OR_RETURN(std::string text, beside(source, "chat_template.jinja"));
  if (!text.empty()) return text;
  ASSIGN_OR_RETURN(const Json config, tokenizer_config(source));
  const auto it = config.find("chat_template");
  if (it == config.end()) return std::string();
  if (it->is_string()) return it->get<std::string>();
  for (const Json& one : *it) {
    if (one.is_object() && one.value("name", Json()) == "default" &&
        one.value("template", Json()).is_string())
      return one["template"].get<std::string>();
  }
  return std::string();
}

}  // namespace

Result<std::string> own_chat_template(const TokenizerSource& source) {
  ASSIGN_OR_RETURN(std::string text, stored_template(source));
  if (is_utf8(text)) return text;
  return invalid(
      "the source's chat template is not UTF-8, which no program would read: correct it in the source");
}

Result<std::string> chat_template(const TokenizerSource& source) {
  ASSIGN_OR_RETURN(std::string own, own_chat_template(source));
  return own.empty() ? std::string(gpt_oss_chat_template()) : own;
}

Result<std::vector<ChatFile>> chat_files(const Checkpoint& source) {
  std::vector<ChatFile> files;
  const TokenizerSource& tokenizer = source.tokenizer;
  if (!tokenizer.any()) return files;
  ASSIGN_OR_RETURN(const TokenizerSource tokens, gguf_tokenizer(tokenizer, source.config.vocab));
  for (const char* const name : kChatFiles) {
    ASSIGN_OR_RETURN(std::string text, beside(tokenizer, name));
    const std::string_view file = name;
    if (file == "chat_template.jinja") {
      ASSIGN_OR_RETURN(text, chat_template(tokenizer));
    }
    if (text.empty() && file == "tokenizer_config.json")
      text = made_tokenizer_config(source.config, tokens.tokens);
    if (text.empty() && file == "generation_config.json")
      text = made_generation_config(source.config, tokens.tokens);
    if (!text.empty()) files.push_back({name, std::move(text)});
  }
  return files;
}

}  // namespace moesaic
