// POST /v1/chat/completions: from a request's body to generations and an answer.
#pragma once

#include <string_view>

#include "moesaic/conversation.h"
#include "openai/answer.h"
#include "openai/fields.h"

namespace moesaic::openai {

// Thread-safe as Model's const methods are.
PreparedRequestOrError prepare_chat(std::string_view body, const Service& service);

// The conversation of such a request; without meaning where fields refuse.
Result<Conversation> chat_conversation(Fields& fields, const Json& root, const Service& service);

}  // namespace moesaic::openai
