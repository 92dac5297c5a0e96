// tokenizer.json, as huggingface/tokenizers writes it (byte-level BPE).
#include "base/error.h"
#include "base/file_cache.h"
#include "text/byte_unicode.h"
#include "text/limited_json.h"
#include "text/tokenizer.h"

namespace moesaic {
namespace {

using text::Json;
using text::member;

bool flag_or(const Json& object, const char* key, bool fallback) {
  const Json& value = member(object, key);
  return value.is_boolean() ? value.get<bool>() : fallback;
}

bool flag(const Json& object, const char* key) { return flag_or(object, key, false); }

Result<int32_t> token_id(const Json& value, std::string_view token) {
  if (!value.is_number_integer() || value < 0 || value >= Vocabulary::kMaxTokens)
    return invalid("the id of '{}' is not an integer from 0 to {}", token.substr(0, 80),
                   Vocabulary::kMaxTokens - 1);
  return value.get<int32_t>();
}

Status add_tokens(const Json& model, Vocabulary& vocabulary) {
  const Json& vocab = member(model, "vocab");
  if (!vocab.is_object()) return invalid("model.vocab is not an object");
  for (const auto& [spelled, value] : vocab.items()) {
    ASSIGN_OR_RETURN(const int32_t id, token_id(value, spelled));
    // Added tokens may stand in the vocabulary in plain spelling; add_named renames them.
    RETURN_IF_ERROR(vocabulary.add(id, bytes_from_unicode(spelled).value_or(spelled)));
  }
  return {};
}

Status add_added_token(const Json& token, Vocabulary& vocabulary) {
  const std::string content = text::string_or(token, "content", ""), shown = content.substr(0, 80);
  ASSIGN_OR_RETURN(const int32_t id, token_id(member(token, "id"), content));
  for (const char* key : {"special", "normalized", "lstrip", "rstrip", "single_word"}) {
    if (const Json& value = member(token, key); !value.is_null() && !value.is_boolean())
      return invalid("added token '{}': {} is neither true nor false", shown, key);
  }
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    if (flag(token, key)) return invalid("added token '{}' uses {}: not supported", shown, key);
  }
  const bool special = flag_or(token, "special", true);
  return vocabulary.add_named({.id = id, .special = special, .late = flag_or(token, "normalized", !special)},
                              content);
}

Status add_added_tokens(const Json& root, Vocabulary& vocabulary) {
  const Json& added = member(root, "added_tokens");
  if (added.is_null()) return {};
  if (!added.is_array()) return invalid("added_tokens is not an array");
  for (const Json& token : added) RETURN_IF_ERROR(add_added_token(token, vocabulary));
  return {};
}

// "left right" or ["left", "right"].
Status split_merge(const Json& merge, std::string& left, std::string& right) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    return {};
  }
  const std::string line = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = line.find(' ');
  if (space == std::string::npos) return invalid("a merge is neither \"left right\" nor [left, right]");
  left = line.substr(0, space), right = line.substr(space + 1);
  return {};
}

Result<std::vector<Bpe::Merge>> read_merges(const Json& model, const Vocabulary& vocabulary) {
  const Json& list = member(model, "merges");
  if (!list.is_array()) return invalid("model.merges is not an array");
  std::vector<Bpe::Merge> merges;
  merges.reserve(list.size());
  std::string left, right;
  for (const Json& entry : list) {
    RETURN_IF_ERROR(split_merge(entry, left, right));
    const std::string a = bytes_from_unicode(left).value_or(left),
                      b = bytes_from_unicode(right).value_or(right);
    const Bpe::Merge merge = {vocabulary.find(a), vocabulary.find(b), vocabulary.find(a + b)};
    if (merge.left < 0 || merge.right < 0 || merge.joined < 0)
      return invalid("merge {} joins '{}' and '{}', which are not all in the vocabulary", merges.size(),
                     left.substr(0, 40), right.substr(0, 40));
    merges.push_back(merge);
  }
  return merges;
}

// The regular expression of one pre-tokenizer of the sequence; empty where it has none.
Result<std::string> pattern_of(const Json& step) {
  const std::string type = text::string_or(step, "type", "");
  if (type == "ByteLevel") {
    if (flag(step, "add_prefix_space")) return invalid("pre_tokenizer: add_prefix_space is not supported");
    const Json& use_regex = member(step, "use_regex");
    const bool own = !use_regex.is_boolean() || use_regex.get<bool>();
    return std::string(own ? kGpt2Pattern : "");
  }
  if (type != "Split")
    return invalid("pre_tokenizer '{}' is not supported: Split and ByteLevel are", type.substr(0, 40));
  const std::string pattern = text::string_or(member(step, "pattern"), "Regex", "");
  const std::string behavior = text::string_or(step, "behavior", "");
  if (pattern.empty() || flag(step, "invert") || behavior != "Isolated")
    return invalid("pre_tokenizer Split: only a Regex with behavior Isolated and no invert is supported");
  return pattern;
}

Result<std::string> read_pattern(const Json& root) {
  const Json& pre = member(root, "pre_tokenizer");
  if (pre.is_null()) return invalid("there is no pre_tokenizer: a Split pattern is needed");
  const bool sequence = text::string_or(pre, "type", "") == "Sequence";
  const Json steps = sequence ? member(pre, "pretokenizers") : Json::array({pre});
  if (!steps.is_array()) return invalid("pre_tokenizer.pretokenizers is not an array");
  std::string found;
  for (const Json& step : steps) {
    ASSIGN_OR_RETURN(const std::string pattern, pattern_of(step));
    if (!pattern.empty() && !found.empty())
      return invalid("pre_tokenizer has two split patterns: one is supported");
    if (!pattern.empty()) found = pattern;
  }
  if (found.empty()) return invalid("pre_tokenizer has no split pattern");
  return found;
}

// False for a sequence of no normalizers, too.
bool normalizes(const Json& normalizer) {
  const Json& steps = member(normalizer, "normalizers");
  const bool sequence = text::string_or(normalizer, "type", "") == "Sequence" && steps.is_array();
  return !normalizer.is_null() && !(sequence && steps.empty());
}

// A post_processor only puts special tokens around a text. Those of a chat are its template's.
Status check_supported(const Json& root) {
  if (!root.is_object()) return invalid("not a JSON object");
  const Json& model = member(root, "model");
  if (text::string_or(model, "type", "BPE") != "BPE") return invalid("model.type is not BPE");
  if (normalizes(member(root, "normalizer"))) return invalid("a normalizer is set: none is supported");
  if (const Json& dropout = member(model, "dropout"); !dropout.is_null() && dropout != 0)
    return invalid("model.dropout is {}, which makes tokens random; expected null",
                   dropout.dump().substr(0, 40));
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!text::string_or(model, affix, "").empty()) return invalid("model.{} is not supported", affix);
  return {};
}

struct Parts {
  Vocabulary vocabulary;
  std::vector<Bpe::Merge> merges;
  std::string pattern;
  bool ignore_merges = false;
};

Result<Parts> read_parts(const Json& root) {
  RETURN_IF_ERROR(check_supported(root));
  const Json& model = member(root, "model");
  Parts parts;
  RETURN_IF_ERROR(add_tokens(model, parts.vocabulary));
  ASSIGN_OR_RETURN(parts.merges, read_merges(model, parts.vocabulary));
  RETURN_IF_ERROR(add_added_tokens(root, parts.vocabulary));
  ASSIGN_OR_RETURN(parts.pattern, read_pattern(root));
  parts.ignore_merges = flag(model, "ignore_merges");
  return parts;
}

Status in_file(const std::string& name, const Status& status) {
  return Status(status.code(), fmt::format("{}: {}", name, status.message()));
}

}  // namespace

Result<Tokenizer> Tokenizer::from_hf_json_text(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(const Json root, text::parse_limited_json(json, name));
  Result<Parts> parts = read_parts(root);
  if (!parts.ok()) return in_file(name, parts.status());
  Result<Bpe> bpe = Bpe::from_merges(parts->vocabulary, parts->merges);
  if (!bpe.ok()) return in_file(name, bpe.status());
  Result<Pretokenizer> pretokenizer = Pretokenizer::create(parts->pattern);
  if (!pretokenizer.ok()) return in_file(name, pretokenizer.status());
  return Tokenizer(std::move(parts->vocabulary), std::move(bpe).value(), std::move(pretokenizer).value(),
                   parts->ignore_merges);
}

Result<Tokenizer> Tokenizer::from_hf_json(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string json, read_whole(path, kMostTokenizerBytes));
  return from_hf_json_text(json, path);
}

}  // namespace moesaic
