#include "ollama/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "ollama/chat_answer.h"
#include "ollama/chat_input.h"
#include "ollama/field_table.h"
#include "openai/chat_generation.h"
#include "openai/sampling_fields.h"
#include "openai/sse.h"

namespace moesaic::ollama {
namespace {

using openai::ApiError;
using openai::Fields;
using openai::Json;
using openai::Service;

struct ChatRequest : openai::ChatTask {
  bool stream = true;  // unless a request says otherwise
};

// True for a text that Go reads as a duration, such as 5m, 1h30m, -1s or 0.
bool is_duration(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789.";
  constexpr std::array<std::string_view, 7> kUnits = {"ns", "us", "µs", "ms", "s", "m", "h"};
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (text == "0") return true;
  bool any = false;
  for (; !text.empty(); any = true) {
    const size_t digits = std::min(text.find_first_not_of(kDigits), text.size());
    if (digits == 0 || text[0] == '.' || std::count(text.begin(), text.begin() + digits, '.') > 1)
      return false;
    text.remove_prefix(digits);
    const size_t end = std::min(text.find_first_of(kDigits), text.size());
    if (std::find(kUnits.begin(), kUnits.end(), text.substr(0, end)) == kUnits.end()) return false;
    text.remove_prefix(end);
  }
  return any;
}

// The model stays loaded, whatever is asked for. But as with Ollama, it must mean something.
void check_keep_alive(Fields& fields) {
  const Json* given = fields.find("keep_alive");
  if (given == nullptr || text::double_of(*given)) return;
  if (!given->is_string() || !is_duration(given->get_ref<const std::string&>()))
    fields.refuse("keep_alive", "must be seconds, or a duration such as \"5m\"");
}

// Without an effect here. But as with Ollama, one with a wrong type is an error.
void check_ignored_option(Fields& fields, const std::string& name, const Json& value) {
  if (!text::double_of(value) && !value.is_boolean() && !value.is_null())
    fields.refuse("options", fmt::format("{}: must be a number, true or false", name));
}

// A limit of num_predict that is not above 0 is none, as Ollama has it.
void read_options(Fields& fields, const Service& service, SamplingParams& sampling) {
  const Json* given = fields.find("options");
  if (given != nullptr && !given->is_object()) return fields.refuse("options", "must be an object");
  Json options = Json::object();
  const Json none = Json::object();
  for (const auto& [name, value] : (given == nullptr ? none : *given).items()) {
    const openai::KnownField* known = option_fields().find(name);
    if (known == nullptr) continue;
    if (known->treatment == openai::Treatment::kRead) options[name] = value;
    if (known->treatment == openai::Treatment::kIgnored) check_ignored_option(fields, name, value);
  }
  Fields inner(options);
  openai::read_sampling(inner, service.model, sampling);
  inner.integer("num_predict", sampling.max_tokens, INT32_MIN, INT32_MAX);
  sampling.max_tokens = std::max(sampling.max_tokens, 0);
  if (!inner.ok()) fields.refuse("options", inner.refusal()->message);
}

// true, false or an effort. Without it the model thinks, and that is shown.
void read_think(Fields& fields, openai::Thinking& thinking) {
  const Json* think = fields.find("think");
  if (think == nullptr) return;
  if (*think == "high" || *think == "max") {
    thinking.effort = ReasoningEffort::kHigh;
  } else if (*think == "low" || *think == false) {
    thinking.effort = ReasoningEffort::kLow;
  } else if (*think != "medium" && *think != true) {
    fields.refuse("think", "must be true, false, \"low\", \"medium\", \"high\" or \"max\"");
  }
  thinking.shown = *think != false;
}

// "json" or a schema.
void read_format(Fields& fields, openai::AnswerForm& form) {
  const Json* format = fields.find("format");
  if (format == nullptr) return;
  const auto* word = format->get_ptr<const std::string*>();
  if (word != nullptr && word->empty()) return;
  if (word != nullptr && *word == "json") {
    const Json any = {{"type", "json_object"}};
    return openai::read_format(fields, "format", &any, form);
  }
  if (!format->is_object()) return fields.refuse("format", "must be \"json\" or a JSON schema");
  const Json schema = {{"type", "json_schema"}, {"schema", *format}};
  openai::read_format(fields, "format", &schema, form);
}

ChatRequest read_common(Fields& fields, const Service& service) {
  ChatRequest r;
  read_served_model(fields, service);
  read_options(fields, service, r.sampling);
  openai::read_logprobs(fields, r.sampling);
  read_think(fields, r.thinking);
  read_format(fields, r.form);
  fields.read("stream", r.stream);
  check_keep_alive(fields);
  return r;
}

openai::PreparedRequest with_answer(const ChatRequest& r, ChatAnswer::Shape shape, const Service& service) {
  openai::PreparedRequest prepared{.requests = {}, .answer = nullptr, .stream = r.stream};
  prepared.answer =
      std::make_unique<ChatAnswer>(service, ChatAnswer::Options{.shape = shape,
                                                                .functions = openai::Callable(r.tools),
                                                                .thinking = r.thinking.shown,
                                                                .logprobs = r.sampling.top_logprobs >= 0});
  return prepared;
}

// There is nothing to generate: the client wanted the model to be loaded.
openai::PreparedRequest loaded(ChatAnswer::Shape shape, const Service& service) {
  openai::PreparedRequest prepared{.requests = {}, .answer = nullptr, .stream = false};
  auto answer = std::make_unique<ChatAnswer>(service, ChatAnswer::Options{.shape = shape, .functions = {}});
  answer->set_loaded();
  prepared.answer = std::move(answer);
  return prepared;
}

openai::PreparedRequestOrError prepared_chat(const ChatRequest& r, const Result<Conversation>& conversation,
                                             ChatAnswer::Shape shape, const char* param, Fields& fields,
                                             const Service& service) {
  auto made = openai::chat_generation(r, conversation, param, fields, service);
  if (auto* error = std::get_if<ApiError>(&made)) return *error;
  openai::PreparedRequest prepared = with_answer(r, shape, service);
  prepared.requests.push_back(std::get<GenerationRequest>(std::move(made)));
  return prepared;
}

// The prompt as it is, without harmony around it.
openai::PreparedRequestOrError prepared_raw(ChatRequest& r, const std::string& prompt, Fields& fields,
                                            const Service& service) {
  auto grammar = openai::grammar_of({}, r.form, false, service);
  if (auto* error = std::get_if<ApiError>(&grammar)) return *error;
  const TokenLimit limit = openai::prompt_limit(service);
  Result<std::vector<int32_t>> tokens = service.model.tokenize(prompt, true, limit);
  if (!tokens.ok()) return openai::api_error(tokens.status(), "prompt");
  if (auto refusal = openai::check_prompt_length(tokens.value().size(), limit.most, "prompt", service))
    return *refusal;
  if (!fields.ok()) return *fields.refusal();
  r.sampling.reasoning_budget = service.reasoning_budget;
  r.sampling.skip_special = true;
  openai::PreparedRequest prepared = with_answer(r, ChatAnswer::Shape::kGenerate, service);
  prepared.requests.push_back({.prompt = std::move(tokens).value(),
                               .sampling = r.sampling,
                               .grammar = std::get<AnswerGrammar>(std::move(grammar))});
  return prepared;
}

Result<Conversation> prompt_as_chat(const ChatRequest& r, const std::string& system,
                                    const std::string& prompt, const Service& service) {
  Conversation conversation = openai::new_conversation(r.tools, r.form, r.thinking, service);
  conversation.instructions = system;
  conversation.messages.push_back({.role = "user", .text = prompt});
  return conversation;
}

openai::PreparedRequestOrError generate(Fields& fields, const Service& service) {
  ChatRequest r = read_common(fields, service);
  std::string prompt, system;
  bool raw = false;
  fields.read("prompt", prompt);
  fields.read("system", system);
  fields.read("raw", raw);
  if (raw && !system.empty()) fields.refuse("system", "with raw, the prompt is all that the model reads");
  if (!fields.ok()) return *fields.refusal();
  if (prompt.empty()) return loaded(ChatAnswer::Shape::kGenerate, service);
  if (raw) return prepared_raw(r, prompt, fields, service);
  return prepared_chat(r, prompt_as_chat(r, system, prompt, service), ChatAnswer::Shape::kGenerate, "prompt",
                       fields, service);
}

openai::PreparedRequestOrError chat(Fields& fields, const Service& service) {
  ChatRequest r = read_common(fields, service);
  r.tools = openai::read_tools(fields);
  const Json* messages = fields.find("messages");
  if (messages != nullptr && !messages->is_array()) fields.refuse("messages", "must be an array");
  if (!fields.ok()) return *fields.refusal();
  if (messages == nullptr || messages->empty()) return loaded(ChatAnswer::Shape::kChat, service);
  return prepared_chat(
      r, read_messages(*messages, openai::new_conversation(r.tools, r.form, r.thinking, service)),
      ChatAnswer::Shape::kChat, "messages", fields, service);
}

openai::PreparedRequestOrError prepare(std::string_view body, const openai::FieldTable& table,
                                       const Service& service,
                                       openai::PreparedRequestOrError (*make)(Fields&, const Service&)) {
  const Result<Json> root = openai::parse_object(body);
  if (!root.ok()) return openai::api_error(root.status());
  Fields fields(root.value());
  openai::UnknownFields unknown = check_fields(root.value(), table, service.strict_fields, fields);
  openai::PreparedRequestOrError made = make(fields, service);
  if (auto* prepared = std::get_if<openai::PreparedRequest>(&made)) prepared->unknown = std::move(unknown);
  return made;
}

}  // namespace

bool is_served(const std::string& model, const Service& service) {
  return model == service.name || model == service.name + ":latest";
}

void read_served_model(Fields& fields, const Service& service, std::string model) {
  fields.read("model", model);
  if (model.empty()) fields.refuse("model", fmt::format("is missing; '{}' is served", service.name));
  if (fields.ok() && !is_served(model, service))
    fields.refuse(
        {.http = 404,
         .message = fmt::format("model '{}' not found; '{}' is served", model.substr(0, 200), service.name),
         .param = "model"});
}

openai::PreparedRequestOrError prepare_chat(std::string_view body, const Service& service) {
  return prepare(body, chat_fields(), service, chat);
}

openai::PreparedRequestOrError prepare_generate(std::string_view body, const Service& service) {
  return prepare(body, generate_fields(), service, generate);
}

}  // namespace moesaic::ollama
