// For tests: what a body becomes at /v1/messages, with models/tiny.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "anthropic/messages_request.h"
#include "openai/fields.h"

namespace moesaic::anthropic {

inline const openai::Service& service() {
  static const Model model =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 1024})
          .value();
  static const openai::Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

// A request with these messages, and with more members.
inline openai::PreparedRequestOrError ask(const std::string& messages, const std::string& more = "") {
  const std::string body = R"({"model": "tiny", "max_tokens": 20, "messages": )" + messages +
                           (more.empty() ? "" : ", " + more) + "}";
  return prepare_messages(body, service());
}

inline openai::PreparedRequest prepared(openai::PreparedRequestOrError made) {
  if (const auto* error = std::get_if<openai::ApiError>(&made)) ADD_FAILURE() << error->message;
  return std::holds_alternative<openai::PreparedRequest>(made)
             ? std::get<openai::PreparedRequest>(std::move(made))
             : openai::PreparedRequest();
}

inline openai::ApiError error_of(openai::PreparedRequestOrError made) {
  EXPECT_TRUE(std::holds_alternative<openai::ApiError>(made));
  return std::holds_alternative<openai::ApiError>(made) ? std::get<openai::ApiError>(std::move(made))
                                                        : openai::ApiError();
}

inline std::string prompt_of(openai::PreparedRequestOrError made) {
  return service().model.detokenize(prepared(std::move(made)).requests.at(0).prompt);
}

inline constexpr const char* kHi = R"([{"role": "user", "content": "hi"}])";
inline constexpr const char* kTool =
    R"("tools": [{"name": "get_weather", "description": "Gets it.", "input_schema": {"type": "object",
       "properties": {"city": {"type": "string"}}, "required": ["city"]}}])";

}  // namespace moesaic::anthropic
