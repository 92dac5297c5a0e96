// GPT-2's spelling of bytes as printable characters, used by tokenizer.json and GGUF: printable Latin-1
// stands for itself, the other 68 bytes are U+0100 onwards in order (openai/gpt-2, src/encoder.py
// bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moesaic {

// Nothing where spelled has a character that stands for no byte.
std::optional<std::string> bytes_from_unicode(std::string_view spelled);

}  // namespace moesaic
