// Errors in the shape of Anthropic's API.
#pragma once

#include <string>

#include "openai/api_error.h"

namespace moesaic::anthropic {

// invalid_request_error, authentication_error, permission_error, not_found_error, request_too_large,
// rate_limit_error, api_error, overloaded_error or timeout_error, by the status.
const char* error_type(int http);

// {"type": "error", "error": {"type", "message"}, "request_id"}; the last one only where it is given. An
// error of the field `thread` has "details", too. That of a prompt that is too long begins with Anthropic's
// words.
std::string error_json(const openai::ApiError& error, const std::string& request_id = {});

}  // namespace moesaic::anthropic
