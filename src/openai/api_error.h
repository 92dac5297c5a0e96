// The error that a client gets when its request cannot be answered, in OpenAI's shape.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "moesaic/status.h"

namespace moesaic::openai {

struct ApiError {
  int http = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;               // the field that is wrong; empty: null
  std::string code;                // empty: null
  int retry_after = 0;             // seconds, for 429 and 503; 0: not said
  bool needs_compilation = false;  // not an error: repeat the call with Service::may_compile
  size_t needs_bytes = 0;          // likewise: with so many of Service::most_stored
  // The prompt's tokens, and the most that it may have: of check_prompt_length() alone.
  size_t prompt_tokens = 0, most_tokens = 0;
};

// Empty: not refused.
using Refusal = std::optional<ApiError>;

// Its message as one line: what it repeats of a request may hold any character.
std::string message_line(const ApiError& error);

// {"error": {"message", "type", "param", "code"}}
std::string error_json(const ApiError& error);

// The error for a status of the engine or the tokenizer. param: the field that it is about.
ApiError api_error(const Status& status, const std::string& param = {});
ApiError not_found(const std::string& message, const std::string& code = {});
ApiError model_not_found(const std::string& model, const std::string& served);
ApiError internal_error(const std::string& message);

}  // namespace moesaic::openai
