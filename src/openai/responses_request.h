// POST /v1/responses, and /v1/responses/input_tokens, which counts what the same body's prompt has.
#pragma once

#include <string_view>

#include "openai/answer.h"
#include "openai/token_requests.h"

namespace moesaic::openai {

PreparedRequestOrError prepare_response(std::string_view body, const Service& service);
TokenAnswerOrError count_input(std::string_view body, const Service& service);

}  // namespace moesaic::openai
