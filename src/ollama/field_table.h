// Every request field of Ollama's API, and how it is treated here.
#pragma once

#include "openai/known_fields.h"

namespace moesaic::ollama {

const openai::FieldTable& chat_fields();      // /api/chat
const openai::FieldTable& generate_fields();  // /api/generate
const openai::FieldTable& option_fields();    // options, of both

}  // namespace moesaic::ollama
