// The answers of Ollama's /api/tags, /api/ps and /api/show about the one model.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "moesaic/engine.h"
#include "openai/answer.h"
#include "openai/token_requests.h"

namespace moesaic::ollama {

// The version of Ollama whose requests field_table.cpp has, as of November 2026. Clients ask /api/version,
// and end where it is lower than the first one that could do what they need: Codex wants 0.13.4, for
// /v1/responses.
inline constexpr const char* kApiVersion = "0.40.0";

std::string tags_json(const std::string& name, const ModelInfo& info, std::time_t since);
std::string running_json(const std::string& name, const ModelInfo& info, std::time_t since);
// {model} or {name}
openai::TokenAnswerOrError show(std::string_view body, const openai::Service& service);

}  // namespace moesaic::ollama
