// Errors in the shape of Ollama's API.
#pragma once

#include <string>

#include "openai/api_error.h"

namespace moesaic::ollama {

// {"error": message}
std::string error_json(const openai::ApiError& error);

}  // namespace moesaic::ollama
