#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 31;

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary, Bpe bpe, Pretokenizer pretokenizer, bool ignore_merges,
                     int32_t eos)
    : vocabulary_(std::move(vocabulary)),
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
  for (size_t at = 0; at < text.size() && !limit.reached(tokens.size());) {
    const auto special = parse_special ? vocabulary_.find_special(text, at) : std::nullopt;
    const size_t plain_end = special ? special->position : text.size();
    RETURN_IF_ERROR(encode_plain(text.substr(at, plain_end - at), limit, tokens));
    if (special) tokens.push_back(special->id);
    at = special ? plain_end + special->length : plain_end;
  }
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
  const bool known = std::find(stops.begin(), stops.end(), eos_) != stops.end();
  if (eos_ >= 0 && !known) stops.push_back(eos_);
  return stops;
}

}  // namespace moesaic
