#include "openai/api_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace moesaic::openai {

std::string message_line(const ApiError& error) {
  std::string line = error.message;
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return line;
}

std::string error_json(const ApiError& e) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json body = {
      {"message", message_line(e)}, {"type", e.type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}};
  return nlohmann::ordered_json{{"error", body}}.dump(-1, ' ', false,
                                                      nlohmann::json::error_handler_t::replace);
}

ApiError api_error(const Status& status, const std::string& param) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUsage:
    case StatusCode::kUnsupported:
      return {.http = 400, .message = status.message(), .param = param};
    case StatusCode::kOutOfMemory:
      return {.http = 503, .message = status.message(), .type = "server_error", .code = "out_of_memory"};
    default:
      return internal_error(status.message());
  }
}

ApiError not_found(const std::string& message, const std::string& code) {
  return {.http = 404, .message = message, .code = code};
}

ApiError context_exceeded(size_t prompt_tokens, size_t counted, int context, const std::string& param) {
  const std::string tokens =
      prompt_tokens > counted ? fmt::format("more than {}", counted) : fmt::format("{}", prompt_tokens);
  return {.http = 400,
          .message = fmt::format(
              "This model's maximum context length is {} tokens. However, your {} resulted in {} tokens, "
              "which leaves none for the answer. Please reduce the length of the {}, or start the server "
              "with a larger --ctx.",
              context, param, tokens, param),
          .param = param,
          .code = "context_length_exceeded",
          .prompt_tokens = prompt_tokens,
          .most_tokens = static_cast<size_t>(context) - 1};
}

ApiError internal_error(const std::string& message) {
  return {.http = 500, .message = message, .type = "server_error", .code = "internal_error"};
}

}  // namespace moesaic::openai
