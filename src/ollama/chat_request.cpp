#include "ollama/chat_request.h"

#include <fmt/format.h>

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

void read_served_model(Fields& fields, const Service& service) {
  std::string model;
  fields.read("model", model);
  if (fields.ok() && !is_served(model, service))
    fields.refuse(
        {.http = 404,
         .message = fmt::format("model '{}' not found; '{}' is served", model.substr(0, 200), service.name),
         .param = "model"});
}

// -2: until the context is full, which is what -1 means too.
void read_options(Fields& fields, const Service& service, SamplingParams& sampling) {
  const Json* given = fields.find("options");
  if (given != nullptr && !given->is_object()) return fields.refuse("options", "must be an object");
  Json options = Json::object();
  const Json none = Json::object();
  for (const auto& [name, value] : (given == nullptr ? none : *given).items()) {
    const openai::KnownField* known = option_fields().find(name);
    if (known != nullptr && known->treatment == openai::Treatment::kRead) options[name] = value;
  }
  if (options.value("num_predict", Json()) == -2) options["num_predict"] = -1;
  Fields inner(options);
  openai::read_sampling(inner, service.model, sampling);
  openai::read_max_tokens(inner, {"num_predict"}, sampling);
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
  read_think(fields, r.thinking);
  read_format(fields, r.form);
  fields.read("stream", r.stream);
  return r;
}

openai::PreparedRequest with_answer(const ChatRequest& r, ChatAnswer::Shape shape, const Service& service) {
  openai::PreparedRequest prepared{.requests = {}, .answer = nullptr, .stream = r.stream};
  prepared.answer = std::make_unique<ChatAnswer>(
      service, ChatAnswer::Options{
                   .shape = shape, .functions = openai::Callable(r.tools), .thinking = r.thinking.shown});
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
  const size_t count = tokens.value().size();
  if (count >= static_cast<size_t>(service.model.context()))
    return openai::context_exceeded(count, limit.most, service.model.context(), "prompt");
  if (!r.form.empty()) openai::check_with_grammar(fields);
  if (!fields.ok()) return *fields.refusal();
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
  if (!fields.ok()) return *fields.refusal();
  openai::PreparedRequestOrError made = make(fields, service);
  if (auto* prepared = std::get_if<openai::PreparedRequest>(&made)) prepared->unknown = std::move(unknown);
  return made;
}

}  // namespace

bool is_served(const std::string& model, const Service& service) {
  return model == service.name || model == service.name + ":latest";
}

openai::PreparedRequestOrError prepare_chat(std::string_view body, const Service& service) {
  return prepare(body, chat_fields(), service, chat);
}

openai::PreparedRequestOrError prepare_generate(std::string_view body, const Service& service) {
  return prepare(body, generate_fields(), service, generate);
}

}  // namespace moesaic::ollama
