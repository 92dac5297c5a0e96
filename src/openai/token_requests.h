// /tokenize, /apply-template and /detokenize, as vLLM and llama.cpp have them, and the counting of prompts.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "openai/answer.h"

namespace moesaic::openai {

struct TokenAnswer {
  std::string json;
  UnknownFields unknown;  // the request's
};
using TokenAnswerOrError = std::variant<TokenAnswer, ApiError>;

// {prompt or content, parse_special} or the body of a chat completion: {tokens, count, max_model_len}
TokenAnswerOrError tokenize(std::string_view body, const Service& service);
// The body of a chat completion: {prompt}, its text as the model reads it
TokenAnswerOrError apply_template(std::string_view body, const Service& service);
// {tokens}: {prompt, content}, twice the same text, in which bytes that are not UTF-8 are U+FFFD
TokenAnswerOrError detokenize(std::string_view body, const Service& service);

// For other endpoints that count: `answer` with the member input_tokens, the tokens of the prompt, however
// many. param: the field that errors about the conversation name.
TokenAnswerOrError count_prompt(const Result<Conversation>& conversation, const std::string& param,
                                const Service& service, UnknownFields unknown, Json answer = Json::object());

}  // namespace moesaic::openai
