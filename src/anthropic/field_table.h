// Every request field of Anthropic's Messages API, and how it is treated here.
#pragma once

#include "openai/known_fields.h"

namespace moesaic::anthropic {

// The fields of /v1/messages and /v1/messages/count_tokens.
const openai::FieldTable& message_fields();

}  // namespace moesaic::anthropic
