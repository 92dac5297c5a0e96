// The input of /v1/responses as messages of chat completions.
#pragma once

#include "openai/fields.h"

namespace moesaic::openai {

// input: a string, or items: messages, reasoning, function_call and function_call_output. Others are refused
// by index.
Json read_input(Fields& fields);

}  // namespace moesaic::openai
