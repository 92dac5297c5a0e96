#include "openai/chat_request.h"

#include <fmt/format.h>

#include "base/error.h"
#include "openai/chat_answer.h"
#include "openai/chat_generation.h"
#include "openai/fields.h"
#include "openai/generation_fields.h"
#include "openai/known_fields.h"
#include "openai/sampling_fields.h"
#include "openai/tool_choice.h"
#include "text/conversation_builder.h"
#include "text/harmony_json.h"

namespace moesaic::openai {
namespace {

struct ChatRequest : ChatTask {
  int n = 1;
  StreamFields stream;
  bool token_ids = false;  // in the answer
  bool continues = false;  // the last message
};

// vLLM's words. An answer either goes on with the last message or begins one of its own.
bool read_continues(Fields& fields) {
  bool continues = false;
  fields.read("continue_final_message", continues);
  bool begins = !continues;
  fields.read("add_generation_prompt", begins);
  if (begins == continues)
    fields.refuse("add_generation_prompt", begins ? "must be false with continue_final_message"
                                                  : "may be false with continue_final_message only");
  return continues;
}

ChatRequest read_chat(Fields& fields, const Service& service) {
  ChatRequest r;
  read_model(fields, service);
  read_sampling(fields, service.model, r.sampling);
  read_logprobs(fields, r.sampling);
  read_max_tokens(fields, {"max_completion_tokens", "max_tokens", "n_predict", "max_new_tokens"}, r.sampling);
  r.tools = read_tools(fields);
  read_parallel_calls(fields, r.tools);
  r.thinking = read_thinking(fields);
  r.verbosity = read_verbosity(fields);
  read_format(fields, "response_format", fields.find("response_format"), r.form);
  read_other_formats(fields, r.form);
  fields.integer("n", r.n, 1, service.max_choices);
  r.cache_prompt = read_cache_prompt(fields);
  r.cache_salt = read_cache_salt(fields);
  r.stream = read_stream(fields);
  fields.read("return_token_ids", r.token_ids);
  r.continues = read_continues(fields);
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    fields.refuse("messages", "must be an array of at least one message");
  return r;
}

Result<Conversation> conversation_of(const Json& root, const ChatRequest& r, const Service& service) {
  Conversation conversation = new_conversation(r.tools, r.form, r.thinking, service);
  conversation.instructions = r.verbosity;
  conversation.continues = r.continues;
  RETURN_IF_ERROR(read_messages(root["messages"], "messages", conversation));
  if (r.continues) leave_open(conversation);
  return conversation;
}

}  // namespace

Result<Conversation> chat_conversation(Fields& fields, const Json& root, const Service& service) {
  const ChatRequest r = read_chat(fields, service);
  return fields.ok() ? conversation_of(root, r, service) : Conversation();
}

PreparedRequestOrError prepare_chat(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  UnknownFields unknown = check_fields(root.value(), chat_fields(), service.strict_fields, fields);
  ChatRequest r = read_chat(fields, service);
  if (!fields.ok()) return *fields.refusal();
  auto made = chat_generation(r, conversation_of(root.value(), r, service), "messages", fields, service);
  if (auto* error = std::get_if<ApiError>(&made)) return *error;
  auto& generation = std::get<GenerationRequest>(made);
  PreparedRequest prepared{.requests = repeated(generation, r.n),
                           .answer = nullptr,
                           .stream = r.stream.stream,
                           .progress = r.stream.progress};
  prepared.unknown = std::move(unknown);
  ChatAnswer::Options options{.choices = r.n,
                              .functions = Callable(r.tools),
                              .logprobs = r.sampling.top_logprobs >= 0,
                              .include_usage = r.stream.include_usage,
                              .continuous_usage = r.stream.continuous_usage,
                              .prompt_tokens = static_cast<int>(generation.prompt.size()),
                              .reasoning = r.thinking.shown,
                              .token_ids = r.token_ids};
  if (r.token_ids) options.prompt = std::move(generation.prompt);
  prepared.answer = std::make_unique<ChatAnswer>(service, options);
  return prepared;
}

}  // namespace moesaic::openai
