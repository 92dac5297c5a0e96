#include "anthropic/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "anthropic/field_table.h"
#include "anthropic/messages_answer.h"
#include "anthropic/messages_input.h"
#include "base/error.h"
#include "openai/chat_generation.h"
#include "openai/reasoning_budget.h"
#include "openai/sampling_fields.h"
#include "openai/sse.h"
#include "text/harmony_json.h"

namespace moesaic::anthropic {
namespace {

using openai::ApiError;
using openai::Fields;
using openai::Json;
using openai::Service;
using text::string_or;

constexpr size_t kMaxStops = 64, kMaxStopBytes = 512;
// Tokens of thought, up to which the prompt asks for low and medium effort.
constexpr int kLowBudget = 4096, kMediumBudget = 16384;

struct MessagesRequest : openai::ChatTask {
  bool stream = false, sealed_thinking = false;
  int max_tokens = 0;  // 0: the prompt is only to be read
  std::string instructions;
};

// Claude's names mean whatever is served, since clients have them built in.
void read_claude_model(Fields& fields, const Service& service) {
  std::string model;
  fields.read("model", model);
  if (!model.starts_with("claude-")) openai::read_model(fields, service);
}

// The three that Anthropic has, whatever else the body holds.
void read_sampling(Fields& fields, const Service& service, SamplingParams& sampling) {
  Json given = Json::object();
  for (const char* key : {"temperature", "top_p", "top_k"}) {
    if (const Json* value = fields.find(key)) given[key] = *value;
  }
  Fields inner(given);
  openai::read_sampling(inner, service.model, sampling);
  if (!inner.ok()) fields.refuse(*inner.refusal());
}

// A tool's description, and its examples behind it.
Result<std::string> description_of(const Json& tool) {
  std::string text = string_or(tool, "description", "");
  const Json& examples = text::member(tool, "input_examples");
  if (!examples.is_null() && !examples.is_array()) return invalid("input_examples is not an array");
  for (const Json& example : examples)
    text += (text.empty() ? "" : "\n") + fmt::format("Example: {}", text::compact_json(example));
  return text;
}

// Anthropic's tools and choice in OpenAI's shape, which read_tools knows.
Json function_of(Fields& fields, const Json& tool, size_t index) {
  const Status strings = tool.is_object() ? text::check_strings(tool, {"type", "name", "description"})
                                          : invalid("not an object");
  if (!strings.ok()) {
    fields.refuse("tools", fmt::format("tool {}: {}", index, strings.message()));
    return {};
  }
  const std::string type = string_or(tool, "type", "custom");
  if (type != "custom") {
    fields.refuse("tools",
                  fmt::format("tool {}: type '{}' is one that Anthropic defines; offer a tool of your own",
                              index, type.substr(0, 40)));
    return {};
  }
  const Result<std::string> description = description_of(tool);
  if (!description.ok()) {
    fields.refuse("tools", fmt::format("tool {}: {}", index, description.status().message()));
    return {};
  }
  Json function = {{"name", string_or(tool, "name", "")}, {"description", description.value()}};
  if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
  if (tool.contains("strict")) function["strict"] = tool["strict"];
  return {{"type", "function"}, {"function", std::move(function)}};
}

Json choice_of(Fields& fields, const Json& choice) {
  std::string type = string_or(choice, "type", "");
  if (type == "auto" || type == "none") return type;
  if (type == "any") return "required";
  if (type == "tool") return {{"type", "function"}, {"function", {{"name", string_or(choice, "name", "")}}}};
  fields.refuse("tool_choice", "type must be auto, any, tool or none");
  return {};
}

// tool_choice.disable_parallel_tool_use
bool wants_one_call(Fields& fields) {
  bool one = false;
  fields.inside("tool_choice", [&](Fields& choice) { choice.read("disable_parallel_tool_use", one); });
  return one;
}

// Anthropic's API takes a name once.
void check_names(Fields& fields, const openai::Tools& tools) {
  std::set<std::string> names;
  for (const openai::OfferedFunction& function : tools.functions) {
    if (!names.insert(function.tool.name).second)
      fields.refuse("tools", fmt::format("two of them are called '{}'", function.tool.name));
  }
}

openai::Tools tools_of(Fields& fields) {
  Json translated = Json::object();
  if (const Json* tools = fields.find("tools")) {
    if (!tools->is_array()) fields.refuse("tools", "must be an array");
    Json functions = Json::array();
    for (size_t i = 0; fields.ok() && i < tools->size(); ++i)
      functions.push_back(function_of(fields, (*tools)[i], i));
    translated["tools"] = std::move(functions);
  }
  if (const Json* choice = fields.find("tool_choice")) translated["tool_choice"] = choice_of(fields, *choice);
  if (!fields.ok()) return {};
  Fields inner(translated);
  openai::Tools tools = openai::read_tools(inner);
  if (!inner.ok()) fields.refuse(*inner.refusal());
  tools.one_call = wants_one_call(fields);
  check_names(fields, tools);
  return tools;
}

ReasoningEffort effort_of(int budget) {
  if (budget <= kLowBudget) return ReasoningEffort::kLow;
  return budget <= kMediumBudget ? ReasoningEffort::kMedium : ReasoningEffort::kHigh;
}

// The model reasons unless the budget is 0; what it thinks is shown where thinking is enabled.
void read_thinking(Fields& fields, MessagesRequest& r) {
  openai::Thinking& thinking = r.thinking;
  thinking.shown = false;
  if (fields.find("thinking") == nullptr) return;
  std::string type, display;
  fields.inside("thinking", [&](Fields& inner) {
    inner.read("type", type);
    inner.read("display", display);
    thinking.budget = openai::read_budget(inner, "budget_tokens", 0);
  });
  if (!fields.ok()) return;
  if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools")
    return fields.refuse("thinking", "type must be enabled, disabled, adaptive or between_tools");
  if (!display.empty() && display != "summarized" && display != "updates" && display != "omitted")
    return fields.refuse("thinking", "display must be summarized, updates or omitted");
  const bool disabled = type == "disabled";
  thinking.shown = !disabled && display != "omitted";
  r.sealed_thinking = !disabled && display == "omitted";
  if (disabled && thinking.budget.value_or(0) > 0)
    return fields.refuse("thinking", "budget_tokens does not belong to type disabled");
  thinking.effort = disabled ? ReasoningEffort::kLow : effort_of(thinking.budget.value_or(kMediumBudget));
}

void read_format(Fields& fields, const char* key, const Json& format, openai::AnswerForm& form) {
  if (string_or(format, "type", "") != "json_schema")
    return fields.refuse(key, "a format is of type json_schema, with a schema");
  openai::read_format(fields, key, &format, form);
}

void read_effort(Fields& fields, const Json& effort, openai::Thinking& thinking) {
  if (effort == "low") {
    thinking.effort = ReasoningEffort::kLow;
  } else if (effort == "medium") {
    thinking.effort = ReasoningEffort::kMedium;
  } else if (effort == "high" || effort == "xhigh" || effort == "max") {
    thinking.effort = ReasoningEffort::kHigh;
  } else {
    fields.refuse("output_config", "effort must be low, medium, high, xhigh or max");
  }
}

void read_output_config(Fields& fields, MessagesRequest& r) {
  if (const Json* format = fields.find("output_format"))
    read_format(fields, "output_format", *format, r.form);
  fields.inside("output_config", [&](const Fields& config) {
    if (const Json* effort = config.find("effort")) read_effort(fields, *effort, r.thinking);
    if (const Json* format = config.find("format")) read_format(fields, "output_config", *format, r.form);
  });
}

void read_stops(Fields& fields, SamplingParams& sampling) {
  const Json* given = fields.find("stop_sequences");
  if (given != nullptr && !given->is_array())
    return fields.refuse("stop_sequences", "must be an array of strings");
  fields.strings("stop_sequences", sampling.stop_strings, kMaxStops);
  for (const std::string& stop : sampling.stop_strings) {
    if (stop.empty() || stop.size() > kMaxStopBytes)
      return fields.refuse("stop_sequences", fmt::format("one has 1 to {} bytes", kMaxStopBytes));
  }
}

// counting: of tokens only, without what a generation needs.
MessagesRequest read_request(Fields& fields, const Service& service, bool counting) {
  MessagesRequest r;
  r.exact_count = true;  // clients leave out as much as the error says, and ask again
  read_claude_model(fields, service);
  read_sampling(fields, service, r.sampling);
  fields.integer("max_tokens", r.max_tokens, 0, INT32_MAX);
  r.sampling.max_tokens = std::max(r.max_tokens, 1);
  if (!counting && fields.find("max_tokens") == nullptr) fields.refuse("max_tokens", "is missing");
  read_stops(fields, r.sampling);
  r.tools = tools_of(fields);
  read_thinking(fields, r);
  read_output_config(fields, r);
  fields.read("stream", r.stream);
  const Json* system = fields.find("system");
  Result<std::string> instructions = system_text(system == nullptr ? Json() : *system);
  if (!instructions.ok()) fields.refuse(openai::api_error(instructions.status(), "system"));
  if (instructions.ok()) r.instructions = std::move(instructions).value();
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    fields.refuse("messages", "must be an array of at least one message");
  return r;
}

Result<Conversation> conversation_of(const Json& root, const MessagesRequest& r, const Service& service) {
  Conversation conversation = openai::new_conversation(r.tools, r.form, r.thinking, service);
  conversation.instructions = r.instructions;
  return read_messages(root["messages"], std::move(conversation));
}

}  // namespace

openai::PreparedRequestOrError prepare_messages(std::string_view body, const Service& service) {
  const Result<Json> root = openai::parse_object(body);
  if (!root.ok()) return openai::api_error(root.status());
  Fields fields(root.value());
  openai::UnknownFields unknown = check_fields(root.value(), message_fields(), service.strict_fields, fields);
  const MessagesRequest r = read_request(fields, service, false);
  if (!fields.ok()) return *fields.refusal();
  auto made =
      openai::chat_generation(r, conversation_of(root.value(), r, service), "messages", fields, service);
  if (auto* error = std::get_if<ApiError>(&made)) return *error;
  auto& generation = std::get<GenerationRequest>(made);
  openai::PreparedRequest prepared{.requests = {}, .answer = nullptr, .stream = r.stream};
  prepared.unknown = std::move(unknown);
  prepared.answer = std::make_unique<MessagesAnswer>(
      service, MessagesAnswer::Options{.functions = openai::Callable(r.tools),
                                       .thinking = r.thinking.shown,
                                       .sealed = r.sealed_thinking,
                                       .max_tokens = r.max_tokens,
                                       .prompt_tokens = static_cast<int>(generation.prompt.size())});
  prepared.requests.push_back(std::move(generation));
  return prepared;
}

openai::TokenAnswerOrError count_tokens(std::string_view body, const Service& service) {
  const Result<Json> root = openai::parse_object(body);
  if (!root.ok()) return openai::api_error(root.status());
  Fields fields(root.value());
  openai::UnknownFields unknown = check_fields(root.value(), message_fields(), service.strict_fields, fields);
  const MessagesRequest r = read_request(fields, service, true);
  if (!fields.ok()) return *fields.refusal();
  return openai::count_prompt(conversation_of(root.value(), r, service), "messages", service,
                              std::move(unknown));
}

}  // namespace moesaic::anthropic
