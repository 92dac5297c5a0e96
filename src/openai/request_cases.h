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

inline Job job_of(JobOrError made) {
  if (const auto* error = std::get_if<ApiError>(&made)) ADD_FAILURE() << error->message;
  return std::holds_alternative<Job>(made) ? std::get<Job>(std::move(made)) : Job();
}

inline ApiError error_of(JobOrError made) {
  EXPECT_TRUE(std::holds_alternative<ApiError>(made));
  return std::holds_alternative<ApiError>(made) ? std::get<ApiError>(std::move(made)) : ApiError();
}

inline std::string with(const char* body, const std::string& more) {
  return std::string("{") + body + (more.empty() ? "" : ", " + more) + "}";
}
inline JobOrError chat(const std::string& more) {
  return chat_job(with(R"("messages": [{"role": "user", "content": "hi"}])", more), service());
}
inline JobOrError completion(const std::string& more) {
  return completion_job(with(R"("prompt": "hi")", more), service());
}
inline JobOrError response(const std::string& more) {
  return responses_job(with(R"("input": "hi")", more), service());
}

inline SamplingParams sampling_of(JobOrError made) { return job_of(std::move(made)).requests.at(0).sampling; }
inline std::string prompt_of(JobOrError made) {
  return service().model.detokenize(job_of(std::move(made)).requests.at(0).prompt);
}

}  // namespace moesaic::openai
