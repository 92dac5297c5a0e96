#include "anthropic/error.h"

#include "openai/sse.h"

namespace moesaic::anthropic {

const char* error_type(int http) {
  switch (http) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
    case 405:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string error_json(const openai::ApiError& error) {
  return openai::dump(
      {{"type", "error"}, {"error", {{"type", error_type(error.http)}, {"message", error.message}}}});
}

}  // namespace moesaic::anthropic
