#include "text/tokenizer.h"

#include "base/error.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 31;

NameSet names_of(const Vocabulary& vocabulary, bool late) {
  std::vector<NameSet::Name> names;
  for (const AddedToken& token : vocabulary.added())
    if (token.late == late) names.push_back({vocabulary.bytes(token.id), token.id});
  return NameSet(std::move(names));
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary, Bpe bpe, Pretokenizer pretokenizer, bool ignore_merges,
                     int32_t eos)
    : vocabulary_(std::move(vocabulary)),
      names_(names_of(vocabulary_, false)),
      late_names_(names_of(vocabulary_, true)),
      bpe_(std::move(bpe)),
      pretokenizer_(std::move(pretokenizer)),
      ignore_merges_(ignore_merges),
      eos_(eos) {}

void Tokenizer::encode_piece(std::string_view piece, const TokenLimit& limit,
                             std::vector<int32_t>& tokens) const {
  const int32_t whole = ignore_merges_ ? vocabulary_.find(piece) : -1;
  if (whole >= 0) {
    tokens.push_back(whole);
  } else {
    bpe_.encode(piece, tokens, limit);
  }
}

// Tokens whose names stand in text, and what is between them: there names that are late, then plain text. A
// special token that nobody asked for stays text, but no other name is looked for within it.
Status Tokenizer::encode_named(const NameSet& names, std::string_view text, bool parse_special,
                               const TokenLimit& limit, std::vector<int32_t>& tokens) const {
  const bool late = &names == &late_names_;
  for (size_t begin = 0, at = 0; begin < text.size() && !limit.reached(tokens.size());) {
    const auto match = names.find(text, at);
    if (match && !parse_special && is_special(match->id)) {
      at = match->position + match->length;
      continue;
    }
    const size_t end = match ? match->position : text.size();
    const std::string_view between = text.substr(begin, end - begin);
    RETURN_IF_ERROR(late ? encode_plain(between, limit, tokens)
                         : encode_named(late_names_, between, parse_special, limit, tokens));
    if (match) tokens.push_back(match->id);
    begin = at = match ? end + match->length : end;
  }
  return {};
}

Status Tokenizer::encode_plain(std::string_view text, const TokenLimit& limit,
                               std::vector<int32_t>& tokens) const {
  return pretokenizer_.split(text, [&](std::string_view piece) {
    encode_piece(piece, limit, tokens);
    return !limit.reached(tokens.size());
  });
}

Result<std::vector<int32_t>> Tokenizer::try_encode(std::string_view text, bool parse_special,
                                                   const TokenLimit& limit) const {
  if (text.size() >= kMaxTextBytes) return invalid("a text of {} bytes is too long to encode", text.size());
  if (utf8_valid_prefix(text) < text.size()) return try_encode(utf8_lossy(text), parse_special, limit);
  std::vector<int32_t> tokens;
  RETURN_IF_ERROR(encode_named(names_, text, parse_special, limit, tokens));
  if (limit.cancel.stop_requested()) return error(StatusCode::kCancelled, "cancelled");
  if (tokens.size() > limit.most) tokens.resize(limit.most + 1);
  return tokens;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  Result<std::vector<int32_t>> tokens = try_encode(text, parse_special);
  if (tokens.ok()) return std::move(tokens).value();
  std::vector<int32_t> joined;
  bpe_.encode(text.substr(0, kMaxTextBytes - 1), joined);
  return joined;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text.append(token_bytes(token));
  return text;
}

std::vector<int32_t> Tokenizer::stop_tokens() const {
  std::vector<int32_t> stops;
  for (const char* name : {"<|return|>", "<|call|>", "<|endoftext|>"})
    if (const auto id = special_id(name)) stops.push_back(*id);
  const bool harmony = is_harmony_name(token_bytes(eos_));
  if (stops.empty() && eos_ >= 0 && !harmony) stops.push_back(eos_);
  return stops;
}

}  // namespace moesaic
