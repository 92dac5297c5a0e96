#include "openai/chat_request.h"

#include <fmt/format.h>

#include "openai/chat_answer.h"
#include "openai/fields.h"
#include "openai/generation_fields.h"
#include "openai/sampling_fields.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {
namespace {

constexpr int kMaxTopLogprobs = 20;

struct ChatRequest {
  SamplingParams sampling;
  Tools tools;
  std::string effort = "medium", schema;
  int n = 1;
  bool stream = false, include_usage = false;
};

void read_logprobs(Fields& fields, SamplingParams& sampling) {
  bool wanted = false;
  int top = 0;
  fields.read("logprobs", wanted);
  fields.integer("top_logprobs", top, 0, kMaxTopLogprobs);
  if (top > 0 && !wanted) fields.refuse("top_logprobs", "needs \"logprobs\": true");
  if (wanted) sampling.top_logprobs = top;
}

void read_limits(Fields& fields, SamplingParams& sampling) {
  fields.integer("max_tokens", sampling.max_tokens, 1, INT32_MAX);
  fields.integer("max_completion_tokens", sampling.max_tokens, 1, INT32_MAX);
}

void refuse_unsupported(Fields& fields) {
  fields.unsupported("functions", "use tools");
  fields.unsupported("function_call", "use tool_choice");
  fields.unsupported("audio", "the model writes text");
  const Json* modalities = fields.find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"}))
    fields.refuse("modalities", "the model writes text");
}

ChatRequest read_chat(Fields& fields, const Service& service) {
  ChatRequest r;
  read_model(fields, service);
  read_sampling(fields, service.model.vocab(), r.sampling);
  read_logprobs(fields, r.sampling);
  read_limits(fields, r.sampling);
  r.tools = read_tools(fields);
  read_effort(fields, "reasoning_effort", r.effort);
  read_format(fields, "response_format", fields.find("response_format"), r.schema);
  fields.integer("n", r.n, 1, service.max_choices);
  read_stream(fields, r.stream, r.include_usage);
  refuse_unsupported(fields);
  return r;
}

// Some clients send back what they were given as `reasoning`.
void accept_reasoning(Json& message) {
  if (!message.is_object() || message.contains("reasoning_content") || !message.contains("reasoning")) return;
  if (message["reasoning"].is_string()) message["reasoning_content"] = message["reasoning"];
}

Json conversation_of(const Json& root, const ChatRequest& r, const Service& service) {
  Json messages = root["messages"];
  for (Json& message : messages) accept_reasoning(message);
  Json conversation = {
      {"messages", std::move(messages)}, {"reasoning_effort", r.effort}, {"current_date", service.today}};
  if (r.tools.offered()) conversation["tools"] = r.tools.list;
  if (root.contains("response_format")) conversation["response_format"] = root["response_format"];
  return conversation;
}

}  // namespace

JobOrError chat_job(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  ChatRequest r = read_chat(fields, service);
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    fields.refuse("messages", "must be an array of at least one message");
  if (!fields.ok()) return *fields.refusal();
  auto grammar = grammar_of(r.tools, r.schema, true);
  if (auto* error = std::get_if<ApiError>(&grammar)) return *error;
  const Json conversation = conversation_of(root.value(), r, service);
  auto prompt = prompt_of(conversation, "messages", service);
  if (auto* error = std::get_if<ApiError>(&prompt)) return *error;
  GenerationRequest generation{.prompt = std::get<std::vector<int32_t>>(std::move(prompt)),
                               .chat = true,
                               .sampling = r.sampling,
                               .grammar = std::get<AnswerGrammar>(std::move(grammar))};
  Job job{.requests = repeated(generation, r.n), .answer = nullptr, .stream = r.stream};
  job.answer =
      std::make_unique<ChatAnswer>(service, ChatAnswer::Options{.choices = r.n,
                                                                .functions = Callable(r.tools),
                                                                .logprobs = r.sampling.top_logprobs >= 0,
                                                                .include_usage = r.include_usage});
  return job;
}

}  // namespace moesaic::openai
