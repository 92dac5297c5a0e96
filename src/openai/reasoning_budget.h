// Reads how many tokens an answer may think, by the names that servers and clients have for it.
#pragma once

#include <optional>

#include "openai/fields.h"

namespace moesaic::openai {

// thinking_token_budget (vLLM), reasoning_budget, reasoning_budget_tokens, thinking_budget_tokens (llama.cpp)
// and thinking_budget; for a chat also reasoning.max_tokens (OpenRouter), thinking.budget_tokens (Anthropic),
// and thinking_budget and reasoning_budget in chat_template_kwargs (models' templates). -1: as many as the
// model wants. Nothing where no field says so. Refuses two that differ, and tokens for thinking that is
// disabled.
std::optional<int> read_reasoning_budget(Fields& fields, bool chat);
// One field's; more than can be counted is as many as can. least: 0 where -1 is no budget.
std::optional<int> read_budget(Fields& fields, const char* key, int least);

}  // namespace moesaic::openai
