#include "anthropic/error.h"

#include <fmt/format.h>

#include "openai/fields.h"
#include "openai/sse.h"

namespace moesaic::anthropic {

const char* error_type(int http) {
  switch (http) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string error_json(const openai::ApiError& error, const std::string& request_id) {
  std::string message = message_line(error);
  // In Anthropic's words, which clients look for before they shorten a conversation.
  if (error.code == "context_length_exceeded")
    message = fmt::format("prompt is too long: {} tokens > {} maximum. {}", error.prompt_tokens,
                          error.most_tokens, message);
  openai::Json json = {{"type", "error"},
                       {"error", {{"type", error_type(error.http)}, {"message", message}}}};
  // Anthropic's client then sends the whole conversation again, without the field.
  if (error.param == "thread") json["error"]["details"] = {{"error_code", "thread_unsupported_request"}};
  if (!request_id.empty()) json["request_id"] = request_id;
  return openai::dump(json);
}

}  // namespace moesaic::anthropic
