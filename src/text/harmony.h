// OpenAI's harmony chat format: a conversation to the tokens a model is asked to continue. Format reference:
// openai/harmony, docs/format.md; the tokens are those of its render_conversation_for_completion,
// but that all analysis before the assistant's last final answer is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/conversation.h"
#include "moesaic/status.h"
#include "text/tokenizer.h"

namespace moesaic {

// Ends with <|start|>assistant, or where Conversation::continues, with the last message's text. Text never
// becomes special tokens, whatever it says; only a content type that begins with <|constrain|> does. Fails on
// unknown roles, tool messages without a name, parameters that are not a JSON object, tokenizers without
// harmony's special tokens, and a last message that cannot go on.
Result<std::vector<int32_t>> render_conversation(const Conversation& conversation, const Tokenizer& tokenizer,
                                                 const TokenLimit& limit = {});

// The text of the two messages that a conversation's fields make.
std::string system_text(const Conversation& conversation);
Result<std::string> developer_text(const Conversation& conversation);

// low, medium or high
const char* effort_name(ReasoningEffort effort);
// The effort of one of those names; none of any other.
std::optional<ReasoningEffort> effort_of(std::string_view name);

}  // namespace moesaic
