// POST /v1/responses. Stateless: nothing is stored, a conversation's items are sent again.
#pragma once

#include <string_view>

#include "openai/answer.h"

namespace moesaic::openai {

PreparedRequestOrError prepare_response(std::string_view body, const Service& service);

}  // namespace moesaic::openai
