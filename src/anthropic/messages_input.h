// The messages of Anthropic's API as a conversation.
#pragma once

#include <string>

#include "moesaic/conversation.h"
#include "openai/fields.h"

namespace moesaic::anthropic {

// A text, or blocks of type text. Blocks that are for the service and not for the model (Claude Code's
// x-anthropic-billing-header) are left out. field: for errors.
Result<std::string> system_text(const openai::Json& system);

// Adds the messages: text, documents of text, thinking, tool_use and tool_result blocks. Images and other
// documents become notes; in the message that is to be answered they are refused. A last message of the
// assistant's goes on (Conversation::continues). Fails with the message's index on other blocks that the
// model cannot read, on citations, on results of unknown calls, and on a last message that calls a tool.
Result<Conversation> read_messages(const openai::Json& messages, Conversation conversation);

}  // namespace moesaic::anthropic
