#include "openai/responses_request.h"

#include <algorithm>
#include <utility>

#include "openai/generation_fields.h"
#include "openai/known_fields.h"
#include "openai/responses_answer.h"
#include "openai/responses_input.h"
#include "openai/sampling_fields.h"
#include "openai/tool_choice.h"
#include "text/harmony.h"

namespace moesaic::openai {
namespace {

constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxIncludes = 64;

struct ResponsesRequest {
  SamplingParams sampling;
  Tools tools;
  Thinking thinking;
  AnswerForm form;
  Json format = {{"type", "text"}};
  Result<Conversation> conversation = Conversation();
  ResponsesAnswer::Options options;
  bool stream = false, cache_prompt = true;
};

void read_text_format(Fields& fields, ResponsesRequest& r) {
  const Json* text = fields.find("text");
  if (text == nullptr) return;
  if (!text->is_object()) return fields.refuse("text", "must be an object");
  const auto format = text->find("format");
  if (format == text->end() || format->is_null()) return;
  r.format = *format;
  read_format(fields, "text", &*format, r.form);
}

// What stands in answers only where it is asked for. The other names are of tools that are not here.
void read_include(Fields& fields, ResponsesRequest& r) {
  std::vector<std::string> names;
  fields.strings("include", names, kMaxIncludes);
  int top = 0;
  fields.integer("top_logprobs", top, 0, kMaxTopLogprobs);
  const auto asks = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  r.options.encrypted_reasoning = asks("reasoning.encrypted_content");
  r.options.logprobs = top > 0 || asks("message.output_text.logprobs");
  if (r.options.logprobs) r.sampling.top_logprobs = top;
}

ResponsesRequest read_responses(Fields& fields, const Service& service) {
  ResponsesRequest r;
  read_model(fields, service);
  read_sampling(fields, service.model, r.sampling);
  read_max_tokens(fields, {"max_output_tokens", "n_predict", "max_new_tokens"}, r.sampling);
  r.tools = read_tools(fields);
  r.thinking = read_thinking(fields);
  read_text_format(fields, r);
  read_other_formats(fields, r.form);
  read_include(fields, r);
  std::string instructions;
  fields.read("instructions", instructions);
  r.cache_prompt = read_cache_prompt(fields);
  fields.read("stream", r.stream);
  Conversation conversation = new_conversation(r.tools, r.form, r.thinking, service);
  conversation.instructions = std::move(instructions);
  r.conversation = read_input(fields, r.tools, std::move(conversation));
  r.options.functions = Callable(r.tools);
  r.options.reasoning = r.thinking.shown;
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
          {"reasoning", {{"effort", effort_name(r.thinking.effort)}, {"summary", nullptr}}},
          {"store", false},
          {"temperature", r.sampling.temperature},
          {"text", {{"format", r.format}}},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_logprobs", std::max(r.sampling.top_logprobs, 0)},
          {"top_p", r.sampling.top_p},
          {"truncation", "disabled"}};
}

}  // namespace

PreparedRequestOrError prepare_response(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  UnknownFields unknown = check_fields(root.value(), responses_fields(), service.strict_fields, fields);
  const ResponsesRequest r = read_responses(fields, service);
  if (!fields.ok()) return *fields.refusal();
  auto grammar = grammar_of(r.tools, r.form, true, service);
  if (auto* error = std::get_if<ApiError>(&grammar)) return *error;
  if (!std::get<AnswerGrammar>(grammar).empty()) check_with_grammar(fields);
  if (!fields.ok()) return *fields.refusal();
  PreparedRequest prepared{.requests = {}, .answer = nullptr, .stream = r.stream};
  prepared.unknown = std::move(unknown);
  prepared.answer = std::make_unique<ResponsesAnswer>(service, echo_of(root.value(), r), r.options);
  auto prompt = prompt_of(r.conversation, "input", service);
  if (auto* error = std::get_if<ApiError>(&prompt)) {
    // Clients of the stream look for this one among its events, to shorten the conversation.
    if (!r.stream || error->code != "context_length_exceeded") return *error;
    prepared.failure = *error;
    return prepared;
  }
  prepared.requests.push_back({.prompt = std::get<std::vector<int32_t>>(std::move(prompt)),
                               .chat = true,
                               .sampling = r.sampling,
                               .grammar = std::get<AnswerGrammar>(std::move(grammar)),
                               .reuse_prefix = r.cache_prompt});
  return prepared;
}

}  // namespace moesaic::openai
