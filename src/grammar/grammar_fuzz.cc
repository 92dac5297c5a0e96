// Any bytes as a schema, up to the first newline that a tab follows, and behind it as the answer's choices:
// compiling ends soon, in a grammar or in one line, and what the masks allow is JSON at every end.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "grammar/mask_cache.h"
#include "grammar/mask_cost.h"
#include "text/fuzz_tokenizer.h"

namespace {

// The bits of a mask, as token ids.
std::vector<int32_t> tokens_of(std::span<const uint64_t> mask) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < mask.size() * 64; ++i)
    if ((mask[i / 64] >> (i % 64) & 1) != 0) tokens.push_back(static_cast<int32_t>(i));
  return tokens;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const moesaic::Tokenizer tokenizer = moesaic::make_fuzz_tokenizer(
      {"a a", "{ \"", "\" :", "\" ,", "1 0", "} }"},
      {"<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(text.find("\n\t"), text.size());
  const auto grammar = moesaic::AnswerGrammar::compile({.json_schema = std::string(text.substr(0, cut))});
  if (!grammar.ok()) {
    MOESAIC_CHECK(grammar.status().message().find('\n') == std::string::npos);
    return 0;
  }
  moesaic::grammar::MaskCache cache(tokenizer);
  moesaic::grammar::Matcher matcher = cache.matcher(grammar.value());
  moesaic::grammar::MaskCost cost;
  std::string answer;
  for (size_t i = cut; i < text.size(); ++i) {
    const auto allowed = next_mask(matcher, cost);
    MOESAIC_CHECK(cost.within_bounds());
    if (!allowed.ok()) break;
    const std::vector<int32_t> tokens = tokens_of(allowed.value());
    const int32_t token = tokens[static_cast<uint8_t>(text[i]) % tokens.size()];
    if (tokenizer.is_special(token)) {
      MOESAIC_CHECK(nlohmann::json::accept(answer));
      break;
    }
    answer += tokenizer.token_bytes(token);
    matcher.take(token);
  }
  return 0;
}
