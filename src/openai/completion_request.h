// POST /v1/completions: the continuation of plain text or of tokens.
#pragma once

#include <string_view>

#include "openai/answer.h"

namespace moesaic::openai {

PreparedRequestOrError prepare_completion(std::string_view body, const Service& service);

}  // namespace moesaic::openai
