#include "openai/token_requests.h"

#include "openai/generation_fields.h"
#include "openai/sse.h"
#include "openai/tool_choice.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

using Tokens = std::vector<int32_t>;

Result<Tokens> tokens_of(Fields& fields, const Service& service) {
  std::string text;
  bool special = false;
  fields.read("content", text);
  fields.read("prompt", text);
  fields.read("parse_special", special);
  const Json* messages = fields.find("messages");
  if (messages == nullptr) return service.model.tokenize(text, special);
  std::string effort = "medium";
  read_effort(fields, "reasoning_effort", effort);
  const Tools tools = read_tools(fields);
  Json conversation = {
      {"messages", *messages}, {"reasoning_effort", effort}, {"current_date", service.today}};
  if (tools.offered()) conversation["tools"] = tools.list;
  return service.model.chat_prompt(dump(conversation));
}

}  // namespace

JsonOrError tokenize(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  if (fields.find("prompt") == nullptr && fields.find("content") == nullptr &&
      fields.find("messages") == nullptr)
    fields.refuse("prompt", "is missing");
  const Result<Tokens> tokens = tokens_of(fields, service);
  if (!fields.ok()) return *fields.refusal();
  if (!tokens.ok()) return api_error(tokens.status(), "prompt");
  return dump({{"count", tokens.value().size()},
               {"max_model_len", service.model.context()},
               {"tokens", tokens.value()}});
}

JsonOrError detokenize(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  const Fields fields(root.value());
  const Json* list = fields.find("tokens");
  const ApiError wrong{.message = "tokens: must be an array of token ids", .param = "tokens"};
  if (list == nullptr || !list->is_array()) return wrong;
  Tokens tokens;
  for (const Json& id : *list) {
    const bool fits =
        id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(service.model.vocab());
    if (!fits) return wrong;
    tokens.push_back(id.get<int32_t>());
  }
  const std::string text = utf8_lossy(service.model.detokenize(tokens));
  return dump({{"prompt", text}, {"content", text}});
}

}  // namespace moesaic::openai
