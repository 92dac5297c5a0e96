// For tests of requests: what a body becomes at each endpoint, with models/tiny.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/responses_request.h"

namespace moesaic::openai {

inline const Service& service() {
  static const Model model =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 1024})
          .value();
  static const Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

inline PreparedRequest prepared_of(PreparedRequestOrError made) {
  if (const auto* error = std::get_if<ApiError>(&made)) ADD_FAILURE() << error->message;
  return std::holds_alternative<PreparedRequest>(made) ? std::get<PreparedRequest>(std::move(made))
                                                       : PreparedRequest();
}

inline ApiError error_of(PreparedRequestOrError made) {
  EXPECT_TRUE(std::holds_alternative<ApiError>(made));
  return std::holds_alternative<ApiError>(made) ? std::get<ApiError>(std::move(made)) : ApiError();
}

inline std::string with(const char* body, const std::string& more) {
  return std::string("{") + body + (more.empty() ? "" : ", " + more) + "}";
}
inline PreparedRequestOrError chat(const std::string& more) {
  return prepare_chat(with(R"("messages": [{"role": "user", "content": "hi"}])", more), service());
}
inline PreparedRequestOrError completion(const std::string& more) {
  return prepare_completion(with(R"("prompt": "hi")", more), service());
}
inline PreparedRequestOrError response(const std::string& more) {
  return prepare_response(with(R"("input": "hi")", more), service());
}

inline SamplingParams sampling_of(PreparedRequestOrError made) {
  return prepared_of(std::move(made)).requests.at(0).sampling;
}
inline std::string prompt_of(PreparedRequestOrError made) {
  return service().model.detokenize(prepared_of(std::move(made)).requests.at(0).prompt);
}

}  // namespace moesaic::openai
