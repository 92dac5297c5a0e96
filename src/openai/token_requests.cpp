#include "openai/token_requests.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "openai/chat_request.h"
#include "openai/generation_fields.h"
#include "openai/known_fields.h"
#include "openai/sse.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

using Tokens = std::vector<int32_t>;

constexpr size_t kMostTokens = 1 << 18;  // to be made text: twice the longest context

// Without meaning where fields refuse.
Result<Tokens> chat_tokens(Fields& fields, const Json& root, const Service& service) {
  ASSIGN_OR_RETURN(const Conversation conversation, chat_conversation(fields, root, service));
  if (!fields.ok()) return Tokens();
  return service.model.chat_prompt(conversation, {.cancel = service.cancel});
}

Result<Tokens> tokens_of(Fields& fields, const Json& root, const Service& service) {
  std::string text;
  bool special = true;  // as completions, vLLM and llama.cpp read a prompt
  fields.read("content", text);
  fields.read("prompt", text);
  fields.read("parse_special", special);
  if (fields.find("messages") == nullptr)
    return service.model.tokenize(text, special, {.cancel = service.cancel});
  return chat_tokens(fields, root, service);
}

}  // namespace

TokenAnswerOrError tokenize(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  UnknownFields unknown = check_fields(root.value(), tokenize_fields(), service.strict_fields, fields);
  const auto given = [&](const char* field) { return fields.find(field) != nullptr ? 1 : 0; };
  if (given("prompt") + given("content") + given("messages") != 1)
    fields.refuse("prompt", "give one of prompt, content and messages");
  const Result<Tokens> tokens = tokens_of(fields, root.value(), service);
  if (!fields.ok()) return *fields.refusal();
  if (!tokens.ok()) return api_error(tokens.status(), "prompt");
  const Json json = {{"count", tokens.value().size()},
                     {"max_model_len", service.model.context()},
                     {"tokens", tokens.value()}};
  return TokenAnswer{dump(json), std::move(unknown)};
}

TokenAnswerOrError apply_template(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  UnknownFields unknown = check_fields(root.value(), tokenize_fields(), service.strict_fields, fields);
  const Result<Tokens> tokens = chat_tokens(fields, root.value(), service);
  if (!fields.ok()) return *fields.refusal();
  if (!tokens.ok()) return api_error(tokens.status(), "messages");
  const std::string text = utf8_lossy(service.model.detokenize(tokens.value()));
  return TokenAnswer{dump({{"prompt", text}}), std::move(unknown)};
}

TokenAnswerOrError detokenize(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  UnknownFields unknown = check_fields(root.value(), detokenize_fields(), service.strict_fields, fields);
  if (!fields.ok()) return *fields.refusal();
  const Json* list = fields.find("tokens");
  ApiError wrong{.message = "tokens: must be an array of token ids", .param = "tokens"};
  if (list == nullptr || !list->is_array()) return wrong;
  if (list->size() > kMostTokens)
    return ApiError{.message = fmt::format("tokens: must be up to {}", kMostTokens), .param = "tokens"};
  Tokens tokens;
  for (const Json& id : *list) {
    const std::optional<int32_t> token = token_id(id, service.model.vocab());
    if (!token) return wrong;
    tokens.push_back(*token);
  }
  const std::string text = utf8_lossy(service.model.detokenize(tokens));
  return TokenAnswer{dump({{"prompt", text}, {"content", text}}), std::move(unknown)};
}

TokenAnswerOrError count_prompt(const Result<Conversation>& conversation, const std::string& param,
                                const Service& service, UnknownFields unknown, Json answer) {
  if (!conversation.ok()) return api_error(conversation.status(), param);
  const Result<Tokens> tokens = service.model.chat_prompt(conversation.value(), {.cancel = service.cancel});
  if (!tokens.ok()) return api_error(tokens.status(), param);
  answer["input_tokens"] = tokens.value().size();
  return TokenAnswer{dump(answer), std::move(unknown)};
}

}  // namespace moesaic::openai
