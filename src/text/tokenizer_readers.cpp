// .tiktoken rank files (openai/tiktoken, load.py) and GGUF vocabularies.
#include <algorithm>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/strings.h"
#include "text/byte_unicode.h"
#include "text/limited_json.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

// The ids between harmony's are <|reserved_N|>.
constexpr int32_t kFirstSpecial = 199998, kLastSpecial = 201087;

Status add_harmony_specials(Vocabulary& vocabulary) {
  for (int32_t id = kFirstSpecial; id <= kLastSpecial; ++id) {
    std::string name = fmt::format("<|reserved_{}|>", id);
    for (const auto& [named, special] : kHarmonyTokens)
      if (named == id) name = special;
    RETURN_IF_ERROR(vocabulary.add_special(id, name));
  }
  return {};
}

std::optional<std::string> base64_padded(std::string_view encoded) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (encoded.empty() || encoded.size() % 4 != 0) return std::nullopt;
  encoded.remove_suffix(encoded.ends_with("==") ? 2 : encoded.ends_with('=') ? 1 : 0);
  return base64_decoded(encoded, kDigits);
}

// The longest of o200k has 128; reading a rank takes the square of it.
constexpr size_t kMostTokenBytes = 1024;

Status add_rank_line(std::string_view line, Vocabulary& vocabulary) {
  const size_t space = line.find(' ');
  const auto bytes = base64_padded(line.substr(0, space));
  const auto rank = number_of<int32_t>(space == line.npos ? "" : line.substr(space + 1));
  if (!bytes || !rank) return invalid("'{}' is not a base64 token and its rank", line.substr(0, 60));
  if (bytes->size() > kMostTokenBytes)
    return invalid("a token of {} bytes; at most {} are allowed", bytes->size(), kMostTokenBytes);
  if (*rank >= kFirstSpecial) return invalid("rank {} belongs to a special token", *rank);
  return vocabulary.add(*rank, *bytes);
}

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4;  // GGUF's types of tokens

Status add_gguf_tokens(const std::vector<std::string>& tokens, const std::vector<int32_t>& types,
                       Vocabulary& vocabulary) {
  if (tokens.size() > Vocabulary::kMaxTokens) return invalid("GGUF: {} tokens are too many", tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const int32_t type = i < types.size() ? types[i] : kNormal;
    if (type == kControl || type == kUserDefined) {
      RETURN_IF_ERROR(vocabulary.add_named({.id = id, .special = type == kControl}, tokens[i]));
    } else {
      RETURN_IF_ERROR(vocabulary.add(id, bytes_from_unicode(tokens[i]).value_or(tokens[i])));
    }
  }
  return {};
}

// Merges whose result or parts the vocabulary lacks can never apply and are left out.
std::vector<Bpe::Merge> gguf_merges(const std::vector<std::string>& lines, const Vocabulary& vocabulary) {
  std::vector<Bpe::Merge> merges;
  for (const std::string& line : lines) {
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos) continue;
    const auto left = bytes_from_unicode(line.substr(0, space)),
               right = bytes_from_unicode(line.substr(space + 1));
    if (!left || !right) continue;
    const Bpe::Merge merge = {vocabulary.find(*left), vocabulary.find(*right),
                              vocabulary.find(*left + *right)};
    if (merge.left >= 0 && merge.right >= 0 && merge.joined >= 0) merges.push_back(merge);
  }
  return merges;
}

}  // namespace

Result<Tokenizer> Tokenizer::from_tiktoken_text(std::string_view lines, const std::string& name) {
  Vocabulary vocabulary;
  for (size_t number = 1; !lines.empty(); ++number) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.empty()) continue;
    if (const Status status = add_rank_line(line, vocabulary); !status.ok())
      return invalid("{}, line {}: {}", name, number, status.message());
  }
  RETURN_IF_ERROR(add_harmony_specials(vocabulary));
  Result<Bpe> bpe = Bpe::from_ranks(vocabulary);
  if (!bpe.ok()) return invalid("{}: {}", name, bpe.status().message());
  ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::create(kO200kPattern));
  return Tokenizer(std::move(vocabulary), std::move(bpe).value(), std::move(pretokenizer), true);
}

Result<Tokenizer> Tokenizer::from_tiktoken(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string lines, read_whole(path, kMostTokenizerBytes));
  return from_tiktoken_text(lines, path);
}

Result<Tokenizer> Tokenizer::from_gguf(const std::vector<std::string>& tokens,
                                       const std::vector<std::string>& merges,
                                       const std::vector<int32_t>& token_types, int32_t bos, int32_t eos,
                                       std::string_view pre) {
  if (!pre.empty() && pre != "gpt-4o" && pre != "o200k")
    return error(StatusCode::kUnsupported, "GGUF: pre-tokenizer '{}' is not supported; gpt-oss has 'gpt-4o'",
                 pre.substr(0, 80));
  const auto size = static_cast<int64_t>(tokens.size());
  if (bos >= size || eos >= size)
    return invalid("GGUF: bos {} or eos {} is outside the vocabulary of {} tokens", bos, eos, size);
  Vocabulary vocabulary;
  RETURN_IF_ERROR(add_gguf_tokens(tokens, token_types, vocabulary));
  ASSIGN_OR_RETURN(Bpe bpe, Bpe::from_merges(vocabulary, gguf_merges(merges, vocabulary)));
  ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::create(kO200kPattern));
  return Tokenizer(std::move(vocabulary), std::move(bpe), std::move(pretokenizer), true, eos);
}

}  // namespace moesaic
