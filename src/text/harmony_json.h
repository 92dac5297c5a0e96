// Conversations from JSON in the manner of OpenAI's chat completions.
#pragma once

#include <string>
#include <string_view>

#include "moesaic/status.h"
#include "text/harmony.h"
#include "text/limited_json.h"
#include "text/unread_media.h"

namespace moesaic {

// An array of messages, or an object {messages, tools, response_format, reasoning_effort, instructions,
// current_date, knowledge_cutoff, model_identity}. Of response_format, type json_schema goes into the prompt:
// {name, description, schema}, with or without chat completions' object json_schema around them. Messages:
// role, content (a string, null, or an array of {type: "text", text} parts), name, channel, recipient,
// content_type, thinking, reasoning_content or reasoning (an analysis message before), tool_calls ([{id,
// function: {name, arguments}}] or [{id, custom: {name, input}}]) and tool_call_id. Images and the like
// become notes, but are refused in the message that is to be answered. The leading system and developer
// messages become the instructions. An assistant's content without a channel is its final answer; beside tool
// calls it is commentary. Fails with the message's index on what does not fit, and on more than kMaxMessages.
// name stands in the errors.
Result<Conversation> conversation_from_json(std::string_view json, const std::string& name);

inline constexpr size_t kMaxMessages = 32'768;
inline constexpr size_t kMaxParametersBytes = 1 << 20;  // a tool's parameters

// The same from JSON that has been parsed, part by part.

// Appends the messages of an array. Where Conversation::continues, the last one has not ended.
Status read_messages(const text::OrderedJson& list, const std::string& name, Conversation& conversation);
// Fails beyond kMaxMessages.
Status check_message_count(size_t count, const std::string& name);
// A content's text: a string, nothing, or the parts of an array that are text or a refusal. media: what
// becomes of images and the like among them.
Result<std::string> content_text(const text::OrderedJson& content, text::Media media = text::Media::kRefused);
// The same of a message: what has a member of its own beside the content, images or audio, belongs to it.
Result<std::string> message_text(const text::OrderedJson& message, text::Media media);
// {name, description, schema}
ResponseFormat response_format(const text::OrderedJson& json);

}  // namespace moesaic
