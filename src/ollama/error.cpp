#include "ollama/error.h"

#include "openai/sse.h"

namespace moesaic::ollama {

std::string error_json(const openai::ApiError& error) {
  return openai::dump({{"error", message_line(error)}});
}

}  // namespace moesaic::ollama
