#include "openai/generation_fields.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "openai/reasoning_budget.h"
#include "openai/sse.h"
#include "text/harmony_json.h"

namespace moesaic::openai {

Result<Json> parse_object(std::string_view body) {
  ASSIGN_OR_RETURN(Json root, text::parse_exact_json(body, "the request's body"));
  if (!root.is_object()) return invalid("the request's body is not a JSON object");
  return root;
}

void read_model(Fields& fields, const Service& service) {
  std::string model = service.name;
  fields.read("model", model);
  if (model != service.name && !model.empty()) fields.refuse(model_not_found(model, service.name));
}

namespace {

constexpr size_t kMaxChoices = 10'000;  // choices in guided_choice
constexpr size_t kMaxSalt = 1024;

// One way to say how much the model is to think.
struct EffortField {
  std::string name;  // "reasoning.effort"
  ReasoningEffort value;
};

std::optional<ReasoningEffort> meaning_of(const std::string& effort) {
  using Effort = ReasoningEffort;
  constexpr std::pair<std::string_view, Effort> kEfforts[] = {
      {"none", Effort::kLow},  {"minimal", Effort::kLow}, {"low", Effort::kLow}, {"medium", Effort::kMedium},
      {"high", Effort::kHigh}, {"xhigh", Effort::kHigh},  {"max", Effort::kHigh}};
  for (const auto& [name, meaning] : kEfforts) {
    if (effort == name) return meaning;
  }
  return {};
}

void read_effort(Fields& fields, const std::string& path, const char* key, std::vector<EffortField>& said) {
  std::string given;
  fields.read(key, given);
  if (given.empty() || given == "auto" || given == "default" || !fields.ok()) return;  // says nothing
  const std::optional<ReasoningEffort> meaning = meaning_of(given);
  if (!meaning)
    return fields.refuse(key, "must be none, minimal, low, medium, high, xhigh, max, auto or default");
  said.push_back({path + key, *meaning});
}

// A switch that is off asks for as little as there is.
void read_switch(Fields& fields, const std::string& path, const char* key, std::vector<EffortField>& said) {
  bool on = true;
  fields.read(key, on);
  if (!on) said.push_back({path + key, ReasoningEffort::kLow});
}

// {type: enabled, disabled, auto or adaptive}, or a switch.
void read_thinking_type(Fields& fields, std::vector<EffortField>& said) {
  const Json* thinking = fields.find("thinking");
  if (thinking == nullptr) return;
  if (thinking->is_boolean()) return read_switch(fields, "", "thinking", said);
  fields.inside("thinking", [&](Fields& inner) {
    std::string type;
    inner.read("type", type);
    if (type == "disabled")
      said.push_back({"thinking.type", ReasoningEffort::kLow});
    else if (!type.empty() && type != "enabled" && type != "auto" && type != "adaptive")
      inner.refuse("type", "must be enabled, disabled, auto or adaptive");
  });
}

void take_form(Fields& fields, const char* key, AnswerFormat given, ResponseFormat format, AnswerForm& form) {
  if (!form.empty() && form.given.key() != given.key())
    return fields.refuse(key, fmt::format("the answer's form is already given by {}", form.field));
  form = {.given = std::move(given), .format = std::move(format), .field = key};
}

void set_form(Fields& fields, const char* key, const Json& schema, ResponseFormat format, AnswerForm& form) {
  if (!schema.is_object() && !schema.is_boolean())
    return fields.refuse(key, "a JSON schema is an object, true or false");
  take_form(fields, key, AnswerFormat{.json_schema = dump(schema)}, std::move(format), form);
}

void any_object(Fields& fields, const char* key, AnswerForm& form) {
  set_form(fields, key, {{"type", "object"}}, {}, form);
}

void set_schema(Fields& fields, const char* key, const Json& schema, AnswerForm& form) {
  set_form(fields, key, schema, response_format({{"schema", schema}}), form);
}

// A schema, which may stand in a string.
void set_schema(Fields& fields, const char* key, const Json* schema, AnswerForm& form) {
  if (schema == nullptr || schema->is_null()) return;
  if (!schema->is_string()) return set_schema(fields, key, *schema, form);
  const Result<Json> parsed = text::parse_exact_json(schema->get_ref<const std::string&>(), "the schema");
  if (!parsed.ok()) return fields.refuse(key, parsed.status().message());
  set_schema(fields, key, parsed.value(), form);
}

// One kind of form that is text, in `source`, which may be the request or an object in it named `key`. An
// empty text would be an answer that cannot be, except in llama.cpp's grammar, where it is the default.
void set_text(Fields& fields, const char* key, Fields& source, const char* member,
              std::string AnswerFormat::*form_of, AnswerForm& form) {
  AnswerFormat given;
  source.read(member, given.*form_of);
  if (source.find(member) != nullptr && source.ok() && (given.*form_of).empty() &&
      std::string_view(key) != "grammar")
    return fields.refuse(key, fmt::format("{} is empty; leave it out where the answer is free", member));
  if (!given.any_text()) take_form(fields, key, std::move(given), {}, form);
}

void set_choices(Fields& fields, const char* key, Fields& source, const char* member, AnswerForm& form) {
  AnswerFormat given;
  const Json* texts = source.find(member);
  if (texts != nullptr && texts->is_array() && texts->empty())
    return fields.refuse(key, "there is no text to choose from");
  source.strings(member, given.choices, kMaxChoices);
  if (!given.any_text()) take_form(fields, key, std::move(given), {}, form);
}

void read_structured_outputs(Fields& fields, AnswerForm& form) {
  constexpr const char* kKey = "structured_outputs";
  fields.inside(kKey, [&](Fields& inner) {
    bool object = false;
    inner.read("json_object", object);
    set_schema(fields, kKey, inner.find("json"), form);
    if (object) any_object(fields, kKey, form);
    set_text(fields, kKey, inner, "regex", &AnswerFormat::regex, form);
    set_text(fields, kKey, inner, "grammar", &AnswerFormat::gbnf, form);
    set_choices(fields, kKey, inner, "choice", form);
  });
}

}  // namespace

Thinking read_thinking(Fields& fields) {
  Thinking thinking;
  std::vector<EffortField> said;
  bool exclude = false, include = true;
  read_effort(fields, "", "reasoning_effort", said);
  fields.inside("reasoning", [&](Fields& reasoning) {
    read_effort(reasoning, "reasoning.", "effort", said);
    read_switch(reasoning, "reasoning.", "enabled", said);
    reasoning.read("exclude", exclude);
  });
  fields.inside("chat_template_kwargs", [&](Fields& kwargs) {
    read_effort(kwargs, "chat_template_kwargs.", "reasoning_effort", said);
    read_switch(kwargs, "chat_template_kwargs.", "enable_thinking", said);
    read_switch(kwargs, "chat_template_kwargs.", "thinking", said);
    kwargs.read("model_identity", thinking.identity);
  });
  read_switch(fields, "", "enable_thinking", said);
  read_thinking_type(fields, said);
  fields.read("include_reasoning", include);
  thinking.budget = read_reasoning_budget(fields, true);
  thinking.shown = include && !exclude;
  for (const EffortField& one : said) {
    if (one.value != said[0].value)
      fields.refuse(one.name.substr(0, one.name.find('.')),
                    fmt::format("{} and {} contradict each other", said[0].name, one.name));
  }
  if (!said.empty()) thinking.effort = said[0].value;
  return thinking;
}

std::string read_verbosity(Fields& fields) {
  std::string verbosity = "medium";
  fields.read("verbosity", verbosity);
  if (verbosity == "low") return "Keep answers short.";
  if (verbosity == "high") return "Answer in detail.";
  if (verbosity != "medium") fields.refuse("verbosity", "must be low, medium or high");
  return {};
}

void read_format(Fields& fields, const char* key, const Json* format, AnswerForm& form) {
  if (format == nullptr || format->is_null()) return;
  const std::string type = text::string_or(*format, "type", "");
  const auto has = [&](const char* member) {
    return format->contains(member) && !(*format)[member].is_null();
  };
  if (type != "text" && type != "json_object" && type != "json_schema")
    return fields.refuse(key, "type must be text, json_object or json_schema");
  if (type != "json_schema" && has("json_schema"))
    return fields.refuse(key, fmt::format("json_schema does not belong to type {}", type));
  if (type == "text" && has("schema")) return fields.refuse(key, "schema does not belong to type text");
  if (type == "text") return;
  if (type == "json_object" && has("value") && !has("schema"))  // huggingface_hub
    return set_schema(fields, key, (*format)["value"], form);
  if (type == "json_object" && !has("schema")) return any_object(fields, key, form);
  // Chat completions have one object more around it than responses; llama.cpp none at all.
  const Json& holder = has("json_schema") ? (*format)["json_schema"] : *format;
  if (!holder.is_object() || !holder.contains("schema"))
    return fields.refuse(key, "json_schema has no schema");
  set_form(fields, key, holder["schema"], response_format(holder), form);
}

void read_other_formats(Fields& fields, AnswerForm& form) {
  set_schema(fields, "guided_json", fields.find("guided_json"), form);
  set_schema(fields, "json_schema", fields.find("json_schema"), form);
  for (const char* key : {"guided_regex", "regex"})
    set_text(fields, key, fields, key, &AnswerFormat::regex, form);
  for (const char* key : {"guided_grammar", "grammar", "ebnf"})
    set_text(fields, key, fields, key, &AnswerFormat::gbnf, form);
  set_choices(fields, "guided_choice", fields, "guided_choice", form);
  read_structured_outputs(fields, form);
}

bool read_cache_prompt(Fields& fields) {
  bool cache = true;
  fields.read("cache_prompt", cache);
  return cache;
}

std::string read_cache_salt(Fields& fields) {
  std::string salt;
  fields.read("cache_salt", salt);
  if (salt.size() > kMaxSalt) fields.refuse("cache_salt", fmt::format("has more than {} bytes", kMaxSalt));
  return salt;
}

StreamFields read_stream(Fields& fields) {
  StreamFields r;
  fields.read("stream", r.stream);
  fields.read("return_progress", r.progress);
  fields.inside("stream_options", [&](Fields& options) {
    options.read("include_usage", r.include_usage);
    options.read("continuous_usage_stats", r.continuous_usage);
  });
  r.continuous_usage = r.continuous_usage && r.include_usage;  // as vLLM has it
  return r;
}

TokenLimit prompt_limit(const Service& service) {
  return {.most = 2 * static_cast<size_t>(service.model.context()), .cancel = service.cancel};
}

Refusal check_prompt_length(size_t tokens, size_t counted, const std::string& param, const Service& service) {
  const auto context = static_cast<size_t>(service.model.context());
  if (tokens < context) return {};
  const std::string shown = tokens > counted ? fmt::format("more than {}", counted) : std::to_string(tokens);
  return ApiError{
      .http = 400,
      .message = fmt::format(
          "This model's maximum context length is {} tokens. However, your {} resulted in {} tokens, "
          "which leaves none for the answer. Please reduce the length of the {}, or {}.",
          context, param, shown, param, service.larger_context),
      .param = param,
      .code = "context_length_exceeded",
      .prompt_tokens = tokens,
      .most_tokens = context - 1};
}

std::variant<std::vector<int32_t>, ApiError> prompt_of(const Result<Conversation>& conversation,
                                                       const std::string& param, const TokenLimit& limit,
                                                       const Service& service) {
  if (!conversation.ok()) return api_error(conversation.status(), param);
  Result<std::vector<int32_t>> prompt = service.model.chat_prompt(conversation.value(), limit);
  if (!prompt.ok()) return api_error(prompt.status(), param);
  if (Refusal refusal = check_prompt_length(prompt.value().size(), limit.most, param, service))
    return *refusal;
  return std::move(prompt).value();
}

std::vector<GenerationRequest> repeated(const GenerationRequest& request, int n) {
  std::vector<GenerationRequest> requests(n, request);
  for (int i = 0; i < n; ++i) requests[i].sampling.seed += i;
  return requests;
}

}  // namespace moesaic::openai
