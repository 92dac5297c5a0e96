// The messages of Ollama's API as a conversation.
#pragma once

#include "moesaic/conversation.h"
#include "openai/fields.h"

namespace moesaic::ollama {

// Adds messages of role, content, thinking, tool_calls (arguments as an object, no ids) and tool_name. A
// tool's result without a name answers the calls before it, in their order. An image becomes
// a note. Fails with the message's index on what does not fit, and on images in the message that is to be
// answered.
Result<Conversation> read_messages(const openai::Json& messages, Conversation conversation);

}  // namespace moesaic::ollama
