// POST /api/chat and /api/generate: from a body to a generation and an answer.
#pragma once

#include <string_view>

#include "openai/answer.h"
#include "openai/fields.h"

namespace moesaic::ollama {

// Thread-safe as Model's const methods are. A request without messages, or without a prompt, asks for the
// model to be loaded: it has no generations, and its answer is complete.
openai::PreparedRequestOrError prepare_chat(std::string_view body, const openai::Service& service);
openai::PreparedRequestOrError prepare_generate(std::string_view body, const openai::Service& service);

// True if the name means the model that is served: its own, with or without ":latest".
bool is_served(const std::string& model, const openai::Service& service);

// Refuses a request that names no model or another one. model: what counts where the field "model" is absent.
void read_served_model(openai::Fields& fields, const openai::Service& service, std::string model = {});

}  // namespace moesaic::ollama
