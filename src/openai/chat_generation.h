// The step that all APIs share: from a chat, as one of them asks for it, to a generation.
#pragma once

#include <string>
#include <variant>

#include "moesaic/engine.h"
#include "openai/answer.h"
#include "openai/fields.h"
#include "openai/generation_fields.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {

struct ChatTask {
  SamplingParams sampling;
  Tools tools;
  Thinking thinking;
  AnswerForm form;
  std::string verbosity = {};  // as read_verbosity() gives it
  bool cache_prompt = true;
  std::string cache_salt = {};
  bool exact_count = false;  // a prompt that is too long is counted to its end
};

using GenerationOrError = std::variant<GenerationRequest, ApiError>;

// The form that the answer must have; refused where the sampling parameters contradict it. Call this before
// the prompt is made, which takes longer.
std::variant<AnswerGrammar, ApiError> grammar_of(const ChatTask& task, Fields& fields,
                                                 const Service& service);

// Both: grammar and prompt. param: the field that errors about the conversation name.
GenerationOrError chat_generation(const ChatTask& task, const Result<Conversation>& conversation,
                                  const std::string& param, Fields& fields, const Service& service);

}  // namespace moesaic::openai
