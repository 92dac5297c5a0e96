// Any bytes as a regular expression, a GBNF grammar or choices (by the first byte), up to the first NUL, and
// behind it as the answer's choices: compiling ends soon, in a grammar or in one line, and what the masks
// allow is of the form at every end.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "grammar/mask_cache.h"
#include "grammar/mask_cost.h"
#include "grammar/schema_matches.h"
#include "text/fuzz_tokenizer.h"

namespace {

using namespace moesaic;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t end = 0; end != std::string_view::npos; text.remove_prefix(end + 1)) {
    end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
  }
  return lines;
}

AnswerFormat format_of(uint8_t kind, std::string_view text) {
  if (kind % 3 == 0) return {.regex = std::string(text)};
  if (kind % 3 == 1) return {.gbnf = std::string(text)};
  return {.choices = lines_of(text)};
}

// The first allowed token from a place in the vocabulary on.
int32_t token_from(std::span<const uint64_t> mask, size_t place) {
  const size_t bits = mask.size() * 64;
  for (size_t i = 0; i < bits; ++i) {
    const size_t token = (place + i) % bits;
    if ((mask[token / 64] >> (token % 64) & 1) != 0) return static_cast<int32_t>(token);
  }
  return -1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = make_fuzz_tokenizer(
      {"a a", "a b", "1 0", "( )"},
      {"<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"});
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t cut = std::min(text.find('\0'), text.size());
  const AnswerFormat format = format_of(data[0], text.substr(0, cut));
  if (format.any_text()) return 0;
  const auto compiled = AnswerGrammar::compile(format);
  if (!compiled.ok()) {
    MOESAIC_CHECK(compiled.status().message().find('\n') == std::string::npos);
    return 0;
  }
  grammar::MaskCache cache(tokenizer);
  grammar::Matcher matcher = cache.matcher(compiled.value());
  grammar::MaskCost cost;
  std::string answer;
  for (size_t i = cut; i < std::min(text.size(), cut + 64); ++i) {
    const auto allowed = next_mask(matcher, cost);
    MOESAIC_CHECK(cost.within_bounds());
    if (!allowed.ok()) break;
    const int32_t token = token_from(allowed.value(), static_cast<uint8_t>(text[i]));
    if (tokenizer.is_special(token)) {
      MOESAIC_CHECK(grammar::matches(compiled.value(), answer));
      break;
    }
    answer += tokenizer.token_bytes(token);
    matcher.take(token);
  }
  return 0;
}
