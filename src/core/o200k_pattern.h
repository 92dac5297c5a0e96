// The split pattern of o200k_base and o200k_harmony (openai/tiktoken, tiktoken_ext/openai_public.py), which
// every gpt-oss tokenizer has. GGUF names it "gpt-4o" instead of spelling it.
#pragma once

namespace moesaic {

// Letters of the same case class: upper-like, then lower-like; contractions in any case.
#define O200K_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define O200K_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define O200K_LEAD R"([^\r\n\p{L}\p{N}]?)"
#define O200K_CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"

// clang-format off
inline constexpr const char* kO200kPattern =
    O200K_LEAD O200K_UPPER "*" O200K_LOWER "+" O200K_CONTRACTION "|"
    O200K_LEAD O200K_UPPER "+" O200K_LOWER "*" O200K_CONTRACTION "|"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// clang-format on

#undef O200K_UPPER
#undef O200K_LOWER
#undef O200K_LEAD
#undef O200K_CONTRACTION

}  // namespace moesaic
