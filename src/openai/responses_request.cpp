#include "openai/responses_request.h"

#include <fmt/format.h>

#include "openai/generation_fields.h"
#include "openai/responses_answer.h"
#include "openai/responses_input.h"
#include "openai/sampling_fields.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {
namespace {

struct ResponsesRequest {
  SamplingParams sampling;
  Tools tools;
  std::string effort = "medium", instructions, schema;
  Json format = {{"type", "text"}};
  Json messages = Json::array();
  bool stream = false;
};

void read_reasoning(Fields& fields, std::string& effort) {
  const Json* reasoning = fields.find("reasoning");
  if (reasoning == nullptr) return;
  if (!reasoning->is_object()) return fields.refuse("reasoning", "must be an object");
  Fields inner(*reasoning);
  read_effort(inner, "effort", effort);
  if (!inner.ok()) fields.refuse("reasoning", inner.refusal()->message);
}

void read_text_format(Fields& fields, ResponsesRequest& r) {
  const Json* text = fields.find("text");
  if (text == nullptr || !text->is_object()) return;
  const auto format = text->find("format");
  if (format == text->end() || format->is_null()) return;
  r.format = *format;
  read_format(fields, "text", &*format, r.schema);
}

void refuse_state(Fields& fields) {
  fields.unsupported("previous_response_id",
                     "nothing is stored here: send the conversation's items as input");
  fields.unsupported("conversation", "nothing is stored here: send the conversation's items as input");
  fields.unsupported("prompt", "send instructions and input");
  bool background = false;
  fields.read("background", background);
  if (background) fields.refuse("background", "nothing is stored here; use stream");
}

ResponsesRequest read_responses(Fields& fields, const Service& service) {
  ResponsesRequest r;
  read_model(fields, service);
  read_sampling(fields, service.model.vocab(), r.sampling);
  fields.integer("max_output_tokens", r.sampling.max_tokens, 1, INT32_MAX);
  r.tools = read_tools(fields);
  read_reasoning(fields, r.effort);
  read_text_format(fields, r);
  refuse_state(fields);
  fields.read("instructions", r.instructions);
  fields.read("stream", r.stream);
  r.messages = read_input(fields);
  return r;
}

// What a response repeats of its request.
Json echo_of(const Json& root, const ResponsesRequest& r) {
  const auto given = [&](const char* key, const Json& otherwise) {
    const auto at = root.find(key);
    return at == root.end() || at->is_null() ? otherwise : *at;
  };
  return {{"instructions", given("instructions", {})},
          {"max_output_tokens", given("max_output_tokens", {})},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", {{"effort", r.effort}, {"summary", nullptr}}},
          {"store", false},
          {"temperature", r.sampling.temperature},
          {"text", {{"format", r.format}}},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", r.sampling.top_p},
          {"truncation", "disabled"}};
}

Json conversation_of(const ResponsesRequest& r, const Service& service) {
  Json conversation = {{"messages", r.messages},
                       {"reasoning_effort", r.effort},
                       {"instructions", r.instructions},
                       {"response_format", r.format},
                       {"current_date", service.today}};
  if (r.tools.offered()) conversation["tools"] = r.tools.list;
  return conversation;
}

}  // namespace

JobOrError responses_job(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  const ResponsesRequest r = read_responses(fields, service);
  if (!fields.ok()) return *fields.refusal();
  auto grammar = grammar_of(r.tools, r.schema, true);
  if (auto* error = std::get_if<ApiError>(&grammar)) return *error;
  Job job{.requests = {}, .answer = nullptr, .stream = r.stream};
  job.answer = std::make_unique<ResponsesAnswer>(service, echo_of(root.value(), r), Callable(r.tools));
  auto prompt = prompt_of(conversation_of(r, service), "input", service);
  if (auto* error = std::get_if<ApiError>(&prompt)) {
    // Clients of the stream look for this one among its events, to shorten the conversation.
    if (!r.stream || error->code != "context_length_exceeded") return *error;
    job.failure = *error;
    return job;
  }
  job.requests.push_back({.prompt = std::get<std::vector<int32_t>>(std::move(prompt)),
                          .chat = true,
                          .sampling = r.sampling,
                          .grammar = std::get<AnswerGrammar>(std::move(grammar))});
  return job;
}

}  // namespace moesaic::openai
