// The input of /v1/responses as messages of chat completions.
#pragma once

#include "openai/tool_choice.h"

namespace moesaic::openai {

// input: a string, or items. Messages, reasoning, and calls with their outputs, of functions and of other
// tools alike, become messages; what a server's own tools did is told as a line of commentary; what says
// nothing to the model is left out. docs/user/server.md has the list. Others are refused by index.
Json read_input(Fields& fields, const Tools& tools);

}  // namespace moesaic::openai
