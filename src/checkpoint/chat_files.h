// Other programs need more than weights and tokenizer to chat with a converted model: the chat template,
// tokenizer_config.json and generation_config.json. Files that the source has are copied unchanged, and
// the others are made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moesaic {

std::string_view gpt_oss_chat_template();

// The source's own: of GGUF's metadata, of chat_template.jinja or tokenizer_config.json beside
// tokenizer.json. Empty where it has none, or none by the name of "default".
Result<std::string> own_chat_template(const TokenizerSource& source);
// The source's own template, or gpt-oss's where it has none.
Result<std::string> chat_template(const TokenizerSource& source);

struct ChatFile {
  std::string name, text;
};
// The files for a folder in Hugging Face's form; none if the source has no tokenizer.
Result<std::vector<ChatFile>> chat_files(const Checkpoint& source);
inline constexpr const char* kChatFiles[] = {"chat_template.jinja", "tokenizer_config.json",
                                             "generation_config.json", "special_tokens_map.json"};

}  // namespace moesaic
