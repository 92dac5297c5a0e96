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

ApiError model_not_found(const std::string& model, const std::string& served) {
  return {.http = 404,
          .message = fmt::format("the model '{}' is not served here; '{}' is", model.substr(0, 200), served),
          .param = "model",
          .code = "model_not_found"};
}

ApiError internal_error(const std::string& message) {
  return {.http = 500, .message = message, .type = "server_error", .code = "internal_error"};
}

}  // namespace moesaic::openai
