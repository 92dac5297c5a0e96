#include "checkpoint/tokenizer_json.h"

#include "base/error.h"
#include "checkpoint/json.h"
#include "core/o200k_pattern.h"

namespace moesaic {
namespace {

constexpr int32_t kControlType = 3, kUserDefinedType = 4;  // GGUF's token types

bool is_special(const TokenizerSource& source, size_t id) {
  if (id >= source.token_types.size()) return false;
  return source.token_types[id] == kControlType || source.token_types[id] == kUserDefinedType;
}

Json added_token(size_t id, const std::string& content, bool control) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", control}};
}

// "left right" as [left, right], which also holds tokens with a space; merges of unknown tokens are left out.
Json merge_list(const std::vector<std::string>& merges, const Json& vocabulary) {
  Json list = Json::array();
  for (const std::string& line : merges) {
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos) continue;
    const std::string left = line.substr(0, space), right = line.substr(space + 1);
    if (vocabulary.contains(left) && vocabulary.contains(right) && vocabulary.contains(left + right))
      list.push_back({left, right});
  }
  return list;
}

Json pre_tokenizer() {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kO200kPattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

Json decoder() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
}

// nlohmann's dump throws on strings that are not UTF-8.
Result<std::string> dump(const Json& json) {
  try {
    return json.dump() + "\n";
  } catch (const Json::exception&) {
    return invalid("the source's tokenizer has tokens that are not UTF-8: tokenizer.json cannot hold them");
  }
}

}  // namespace

Result<std::string> tokenizer_json(const TokenizerSource& source) {
  Json vocabulary = Json::object(), added = Json::array();
  for (size_t id = 0; id < source.tokens.size(); ++id) {
    const std::string& token = source.tokens[id];
    if (is_special(source, id)) {
      added.push_back(added_token(id, token, source.token_types[id] == kControlType));
    } else if (!vocabulary.emplace(token, id).second) {
      return invalid("the source's tokenizer has token {} twice: tokenizer.json cannot hold that", id);
    }
  }
  Json merges = merge_list(source.merges, vocabulary);
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", true},
                      {"vocab", std::move(vocabulary)},
                      {"merges", std::move(merges)}};
  return dump({{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", std::move(added)},
               {"normalizer", nullptr},
               {"pre_tokenizer", pre_tokenizer()},
               {"post_processor", nullptr},
               {"decoder", decoder()},
               {"model", model}});
}

}  // namespace moesaic
