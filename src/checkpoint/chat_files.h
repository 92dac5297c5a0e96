// What a converted model needs beside weights and tokenizer, so that other programs can chat with it: the
// chat template, tokenizer_config.json and generation_config.json. What the source has goes along as it is;
// the rest is made.
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
// That one, or gpt-oss's.
Result<std::string> chat_template(const TokenizerSource& source);

struct ChatFile {
  std::string name, text;
};
// Of a folder in Hugging Face's form; none where the source has no tokenizer.
Result<std::vector<ChatFile>> chat_files(const Checkpoint& source);
inline constexpr const char* kChatFiles[] = {"chat_template.jinja", "tokenizer_config.json",
                                             "generation_config.json", "special_tokens_map.json"};

}  // namespace moesaic
