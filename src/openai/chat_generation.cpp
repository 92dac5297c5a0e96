#include "openai/chat_generation.h"

#include <utility>

#include "openai/sampling_fields.h"

namespace moesaic::openai {

std::variant<AnswerGrammar, ApiError> grammar_of(const ChatTask& task, Fields& fields,
                                                 const Service& service) {
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
  auto prompt = prompt_of(conversation, param, service);
  if (auto* error = std::get_if<ApiError>(&prompt)) return *error;
  return GenerationRequest{.prompt = std::get<std::vector<int32_t>>(std::move(prompt)),
                           .chat = true,
                           .sampling = task.sampling,
                           .grammar = std::get<AnswerGrammar>(std::move(grammar)),
                           .reuse_prefix = task.cache_prompt};
}

}  // namespace moesaic::openai
