// POST /v1/messages and /v1/messages/count_tokens: from a body to a generation and an answer, or to a count.
#pragma once

#include <string_view>

#include "openai/answer.h"
#include "openai/token_requests.h"

namespace moesaic::anthropic {

// Thread-safe as Model's const methods are.
openai::PreparedRequestOrError prepare_messages(std::string_view body, const openai::Service& service);

// {"input_tokens": n}
openai::TokenAnswerOrError count_tokens(std::string_view body, const openai::Service& service);

}  // namespace moesaic::anthropic
