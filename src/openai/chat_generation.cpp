#include "openai/chat_generation.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "openai/sampling_fields.h"

namespace moesaic::openai {
namespace {

// A response format is about the final answer, which there is none of where a call must be made. Other
// servers' words say how the next tokens look, and would be dropped.
void check_form_with_calls(const ChatTask& task, Fields& fields) {
  constexpr std::array<std::string_view, 6> kOfFinalAnswers = {"response_format", "text",          "input",
                                                               "output_format",   "output_config", "format"};
  const bool final = std::ranges::find(kOfFinalAnswers, task.form.field) != kOfFinalAnswers.end();
  if (task.tools.must_call() && !task.form.empty() && !final)
    fields.refuse(task.form.field, "tool_choice asks for a call, which this form would not apply to");
}

}  // namespace

std::variant<AnswerGrammar, ApiError> grammar_of(const ChatTask& task, Fields& fields,
                                                 const Service& service) {
  check_form_with_calls(task, fields);
  if (!fields.ok()) return *fields.refusal();
  auto grammar = grammar_of(task.tools, task.form, true, service);
  const auto* made = std::get_if<AnswerGrammar>(&grammar);
  if (made != nullptr && !made->empty()) check_with_grammar(fields);
  if (!fields.ok()) return *fields.refusal();
  return grammar;
}

GenerationOrError chat_generation(const ChatTask& task, const Result<Conversation>& conversation,
                                  const std::string& param, Fields& fields, const Service& service) {
  auto grammar = grammar_of(task, fields, service);
  if (auto* error = std::get_if<ApiError>(&grammar)) return *error;
  if (conversation.ok() && conversation.value().continues && !std::get<AnswerGrammar>(grammar).empty())
    return ApiError{.message = param +
                               ": the last one is the assistant's and goes on as text: no form of the "
                               "answer, strict function or forced call applies to it",
                    .param = param};
  TokenLimit limit = prompt_limit(service);
  if (task.exact_count) limit.most = SIZE_MAX;
  auto prompt = prompt_of(conversation, param, limit, service);
  if (auto* error = std::get_if<ApiError>(&prompt)) return *error;
  SamplingParams sampling = task.sampling;
  sampling.reasoning_budget = task.thinking.budget.value_or(service.reasoning_budget);
  GenerationRequest generation{.prompt = std::get<std::vector<int32_t>>(std::move(prompt)),
                               .chat = true,
                               .sampling = std::move(sampling),
                               .grammar = std::get<AnswerGrammar>(std::move(grammar)),
                               .reuse_prefix = task.cache_prompt,
                               .cache_salt = task.cache_salt};
  if (task.tools.one_call)
    generation.ends_after = [functions = Callable(task.tools)](const Message& message) {
      return !functions.name_of(message.recipient).empty();
    };
  return generation;
}

}  // namespace moesaic::openai
