// Conversations from JSON in the manner of OpenAI's chat completions.
#pragma once

#include <string>
#include <string_view>

#include "moesaic/status.h"
#include "text/harmony.h"

namespace moesaic {

// An array of messages, or an object {messages, tools, response_format, reasoning_effort, instructions,
// current_date, knowledge_cutoff, model_identity}. Of response_format, type json_schema is told to the model:
// {name, description, schema}, with or without chat completions' object json_schema around them. Messages:
// role, content (a string, null, or an array of {type: "text", text} parts), name, channel, recipient,
// content_type, thinking or reasoning_content (an analysis message before), tool_calls ([{id, function:
// {name, arguments}}]) and tool_call_id. The leading system and developer messages become the instructions.
// An assistant's content without a channel is its final answer; beside tool calls it is commentary. Fails
// with the message's index on what does not fit, and on more than kMaxMessages. name stands in the errors.
Result<Conversation> conversation_from_json(std::string_view json, const std::string& name);

inline constexpr size_t kMaxMessages = 32'768;

}  // namespace moesaic
