// The input of /v1/responses as messages of a conversation.
#pragma once

#include "moesaic/conversation.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {

// input: a string, or items. Messages, reasoning, and calls with their outputs, of functions and of other
// tools alike, become messages; what a server's own tools did becomes a line of commentary; images become
// notes; what says nothing to the model is left out, and so are settings, which input_settings.h reads.
// docs/user/server.md has the list. Others are refused by index, which counts from the item `first` on: those
// before it are of previous responses. Fails on messages that the conversation cannot have; without meaning
// where fields refuse.
// A reference to a stored item is refused too: before this, responses_request.cpp puts items in their places.
Result<Conversation> read_input(Fields& fields, const Tools& tools, size_t first, Conversation conversation);

// An item_reference, which may leave its type out.
bool is_reference(const Json& item);

}  // namespace moesaic::openai
