// POST /v1/chat/completions: from a request's body to generations and an answer.
#pragma once

#include <string_view>

#include "openai/answer.h"

namespace moesaic::openai {

// Thread-safe as Model's const methods are.
JobOrError chat_job(std::string_view body, const Service& service);

}  // namespace moesaic::openai
