// Fields and steps that several endpoints share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "moesaic/conversation.h"
#include "openai/answer.h"
#include "openai/fields.h"

namespace moesaic::openai {

// A request's body, which must be a JSON object.
Result<Json> parse_object(std::string_view body);

// model may be absent; another model than the served one is not found.
void read_model(Fields& fields, const Service& service);
// The effort that a chat's prompt asks for, and whether the answer shows the reasoning.
struct Thinking {
  ReasoningEffort effort = ReasoningEffort::kMedium;
  std::string identity;  // the system message's first line; empty: harmony's own
  bool shown = true;
  std::optional<int> budget = {};  // tokens of reasoning (SamplingParams); nothing: the server's
};
// reasoning_effort, reasoning.effort and chat_template_kwargs.reasoning_effort (none to max, as the three
// efforts that the model knows), reasoning.enabled, enable_thinking, thinking and both of these in
// chat_template_kwargs (false or disabled: low), reasoning.exclude, include_reasoning,
// chat_template_kwargs.model_identity and the budget (reasoning_budget.h). What contradicts itself is
// refused.
Thinking read_thinking(Fields& fields);
// verbosity, for which the model has no setting, as an instruction; empty for medium.
std::string read_verbosity(Fields& fields);

// The form that an answer must have.
struct AnswerForm {
  AnswerFormat given;      // its schema, expression, grammar or choices; none: any text
  ResponseFormat format;   // as the prompt has it
  const char* field = "";  // the field that said so, for errors
  bool empty() const { return given.any_text(); }
};
// response_format of chat completions, or text.format of responses: text, json_object (with or without a
// schema) or json_schema. key: the field that errors name. format may be null.
void read_format(Fields& fields, const char* key, const Json* format, AnswerForm& form);
// The same in other servers' words, and what only they have: guided_json, guided_regex, guided_choice,
// guided_grammar and structured_outputs (vLLM), regex and ebnf (SGLang), json_schema and grammar (llama.cpp).
void read_other_formats(Fields& fields, AnswerForm& form);
// stream, stream_options and return_progress
struct StreamFields {
  bool stream = false;
  bool include_usage = false;  // stream_options: a last chunk with the usage
  // stream_options.continuous_usage_stats: each chunk has the usage so far
  bool continuous_usage = false;
  bool progress = false;  // llama.cpp's return_progress
};
StreamFields read_stream(Fields& fields);

// cache_prompt, which is true unless given.
bool read_cache_prompt(Fields& fields);
// cache_salt, as vLLM has it.
std::string read_cache_salt(Fields& fields);

// The tokens of a conversation; refused where they fill the context. param: the field that errors name.
// limit: tokens are counted up to there.
std::variant<std::vector<int32_t>, ApiError> prompt_of(const Result<Conversation>& conversation,
                                                       const std::string& param, const TokenLimit& limit,
                                                       const Service& service);

// The most tokens that are made of a prompt: some more than the context, to say how many are too many.
TokenLimit prompt_limit(const Service& service);

// Refuses a prompt as long as the context in OpenAI's words, which clients look for. tokens: as TokenLimit
// leaves them, at most `counted`; where they are more, it says "more than".
Refusal check_prompt_length(size_t tokens, size_t counted, const std::string& param, const Service& service);

// n generations that differ in their seeds, the first one's being the request's.
std::vector<GenerationRequest> repeated(const GenerationRequest& request, int n);

}  // namespace moesaic::openai
