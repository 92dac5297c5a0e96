#include "openai/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "openai/sampling_fields.h"
#include "openai/spliced_json.h"
#include "text/conversation_builder.h"
#include "text/harmony_json.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

constexpr size_t kMaxTools = 512;
constexpr size_t kMaxNameBytes = 128;
// Arguments come back in a request, with up to six objects and arrays around them.
constexpr size_t kMostArgumentsDepth = text::kMaxJsonDepth - 6;
constexpr std::string_view kFunctions = "functions.";

// {function: {name, ...}}, or the function itself.
const Json& function_of(const Json& tool) {
  const auto at = tool.find("function");
  return at != tool.end() && at->is_object() ? *at : tool;
}

bool is_name(const std::string& name) { return name.size() <= kMaxNameBytes && is_made_of(name, "_-."); }

void refuse_name(Fields& fields, const std::string& where) {
  fields.refuse("tools", fmt::format("{} has no name of up to {} letters, digits, '_', '-' and '.'", where,
                                     kMaxNameBytes));
}

// Says what is wrong with a function's parameters; empty: nothing.
std::string wrong_parameters(const Json& function) {
  const auto parameters = function.find("parameters");
  if (parameters == function.end() || parameters->is_null()) return {};
  if (!parameters->is_object()) return "'s parameters are not an object";
  return dump(*parameters).size() > kMaxParametersBytes
             ? fmt::format("'s parameters have more than {} bytes", kMaxParametersBytes)
             : "";
}

// The schema of parameters that are not wrong.
JsonSchema parameters_of(const Json& function) {
  const auto parameters = function.find("parameters");
  const bool given = parameters != function.end() && parameters->is_object();
  return given ? text::json_schema(*parameters) : JsonSchema();
}

// where: "tool 3". space: the namespace that it is in.
void add_function(Fields& fields, const Json& tool, const std::string& where, const std::string& space,
                  Tools& tools) {
  const Json& function = function_of(tool);
  if (const Status strings = text::check_strings(function, {"name", "description"}); !strings.ok())
    return fields.refuse("tools", fmt::format("{}: {}", where, strings.message()));
  const FunctionName name{.name = text::string_or(function, "name", ""), .space = space};
  if (!is_name(name.name) || !is_name(name.in_prompt())) return refuse_name(fields, where);
  const std::string wrong = wrong_parameters(function);
  if (!wrong.empty()) return fields.refuse("tools", where + wrong);
  tools.functions.push_back({.name = name,
                             .tool = {.name = name.in_prompt(),
                                      .description = text::string_or(function, "description", ""),
                                      .parameters = parameters_of(function)},
                             .strict = function.value("strict", Json()) == true});
}

void read_tools_of(Fields& fields, const Json& list, const std::string& where, const std::string& space,
                   Tools& tools) {
  if (!list.is_array()) return fields.refuse("tools", where + "must be an array");
  for (size_t i = 0; i < list.size() && fields.ok(); ++i) {
    const std::string one = fmt::format("{}tool {}", where, i);
    if (!list[i].is_object()) return fields.refuse("tools", one + " is not an object");
    if (const Status strings = text::check_strings(list[i], {"type"}); !strings.ok())
      return fields.refuse("tools", fmt::format("{}: {}", one, strings.message()));
    const std::string type = text::string_or(list[i], "type", "function");
    if (type == "function") add_function(fields, list[i], one, space, tools);
    if (type == "namespace" && space.empty()) {
      const std::string name = text::string_or(list[i], "name", "");
      if (!is_name(name)) return refuse_name(fields, one);
      read_tools_of(fields, list[i].value("tools", Json::array()), one + ": ", name, tools);
    }
    if (tools.functions.size() > kMaxTools || i >= kMaxTools)
      return fields.refuse("tools", fmt::format("more than {} tools", kMaxTools));
  }
}

// The name, as the prompt has it, of the function that a choice names.
std::string chosen_name(const Json& choice) {
  const Json& function = function_of(choice);
  return FunctionName{.name = text::string_or(function, "name", ""),
                      .space = text::string_or(function, "namespace", "")}
      .in_prompt();
}

bool has_tool(const Tools& tools, const std::string& name) {
  return std::any_of(tools.functions.begin(), tools.functions.end(),
                     [&](const OfferedFunction& function) { return function.tool.name == name; });
}

// {type: allowed_tools, mode, tools}, in chat completions with an object allowed_tools around the two. The
// prompt names all tools, so that prompts begin alike; only these can be called.
void read_allowed(Fields& fields, const Json& choice, Tools& tools) {
  const auto inner = choice.find("allowed_tools");
  const Json& allowed = inner != choice.end() && inner->is_object() ? *inner : choice;
  const std::string mode = text::string_or(allowed, "mode", "");
  if (mode != "auto" && mode != "required")
    return fields.refuse("tool_choice", "allowed_tools: mode must be auto or required");
  const auto list = allowed.find("tools");
  if (list == allowed.end() || !list->is_array() || list->size() > kMaxTools)
    return fields.refuse("tool_choice",
                         fmt::format("allowed_tools: tools must be an array of up to {}", kMaxTools));
  tools.allowed.emplace();
  for (const Json& tool : *list) {
    if (!tool.is_object()) return fields.refuse("tool_choice", "allowed_tools: a tool is not an object");
    if (text::string_or(tool, "type", "function") != "function") continue;
    const std::string name = chosen_name(tool);
    if (!has_tool(tools, name))
      return fields.refuse("tool_choice", "allowed_tools names a function that is not among the tools");
    tools.allowed->push_back(name);
  }
  using Choice = Tools::Choice;
  tools.choice = mode == "required"       ? Choice::kRequired
                 : tools.allowed->empty() ? Choice::kNone
                                          : Choice::kAuto;
  if (mode == "required" && tools.allowed->empty())
    fields.refuse("tool_choice", "required, but no function is allowed");
}

void read_choice(Fields& fields, Tools& tools) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  using Choice = Tools::Choice;
  if (*choice == "auto") {
    tools.choice = Choice::kAuto;
  } else if (*choice == "none") {
    tools.choice = Choice::kNone;
  } else if (*choice == "required") {
    tools.choice = Choice::kRequired;
  } else if (choice->is_object() &&
             text::string_or(*choice, "type", choice->contains("function") ? "function" : "") == "function") {
    tools.choice = Choice::kNamed;
    tools.named = chosen_name(*choice);
    if (!has_tool(tools, tools.named))
      return fields.refuse("tool_choice", "names a function that is not among the tools");
  } else if (choice->is_object() && text::string_or(*choice, "type", "") == "allowed_tools") {
    read_allowed(fields, *choice, tools);
  } else {
    return fields.refuse("tool_choice",
                         "must be none, auto, required, {\"type\": \"function\", ...} or {\"type\": "
                         "\"allowed_tools\", ...}");
  }
  if (tools.choice == Choice::kRequired && tools.functions.empty())
    fields.refuse("tool_choice",
                  "required, but there are no tools of type function, and others cannot be called");
}

// Keywords beside which an object without `properties` may have members.
constexpr std::array<std::string_view, 18> kOpening = {"additionalProperties",
                                                       "unevaluatedProperties",
                                                       "propertyNames",
                                                       "required",
                                                       "minProperties",
                                                       "dependencies",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "enum",
                                                       "const",
                                                       "not",
                                                       "if",
                                                       "allOf",
                                                       "anyOf",
                                                       "oneOf",
                                                       "$ref",
                                                       "$dynamicRef",
                                                       "$recursiveRef"};

bool is_object_type(const Json& type) {
  return type == "object" || (type.is_array() && std::find(type.begin(), type.end(), "object") != type.end());
}

// {"type": "object", "properties": {}}, as MCP servers and pydantic write a function of no arguments.
bool takes_nothing(const Json& parameters) {
  const Json& type = text::member(parameters, "type");
  if (!type.is_null() && !is_object_type(type)) return false;
  for (const char* keyword : {"properties", "patternProperties"}) {
    const Json& named = text::member(parameters, keyword);
    if (!named.is_null() && named != Json::object()) return false;
  }
  return std::none_of(kOpening.begin(), kOpening.end(), [&](std::string_view keyword) {
    const auto at = parameters.find(keyword);
    return at != parameters.end() && !at->is_null() && *at != Json::array();
  });
}

// The schema that a call's arguments follow: always an object's.
std::string schema_of(const Tool& tool) {
  if (tool.parameters.empty() || takes_nothing(tool.parameters.parsed()->value))
    return R"({"type": "object", "properties": {}, "additionalProperties": false})";
  Json schema = tool.parameters.parsed()->value;
  if (text::member(schema, "type") == "object" && text::member(schema, "nullable") != true)
    return dump(schema);
  Json& all = schema["allOf"];
  if (all.is_null()) all = Json::array();
  if (all.is_array()) all.push_back(Json{{"type", "object"}});
  return dump(schema);
}

// Nothing where it is not compiled and may not be.
std::optional<Result<AnswerGrammar>> compiled(const AnswerFormat& format, const Service& service) {
  if (service.grammars == nullptr) return AnswerGrammar::compile(format, service.cancel);
  if (service.may_compile) return service.grammars->get(format, service.cancel);
  return service.grammars->find(format);
}

}  // namespace

std::string FunctionName::in_prompt() const {
  if (space.empty()) return name;
  return space + (space.ends_with("__") ? "" : "__") + name;
}

bool Tools::may_call(const std::string& name) const {
  return offered() && (choice != Choice::kNamed || name == named) &&
         (!allowed || std::ranges::count(*allowed, name) > 0);
}

std::string Tools::in_prompt(const FunctionName& name) const {
  return has_tool(*this, name.in_prompt()) ? name.in_prompt() : name.name;
}

Tools read_tools(Fields& fields) {
  Tools tools;
  if (const Json* list = fields.find("tools")) read_tools_of(fields, *list, "", "", tools);
  read_choice(fields, tools);
  return tools;
}

void read_parallel_calls(Fields& fields, Tools& tools) {
  bool parallel = true;
  fields.read("parallel_tool_calls", parallel);
  tools.one_call = !parallel;
}

std::string call_id(const char* prefix, const TextPiece& call, std::string_view mark) {
  return new_id(prefix) + std::string(mark) + std::string(call.recipient_last ? kRecipientLast : "");
}

std::vector<std::string> arguments_in_parts(const std::string& text) {
  constexpr size_t kPart = 16;  // bytes
  std::vector<std::string> parts;
  size_t begin = 0;
  do {
    size_t end = std::min(begin + kPart, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  } while (begin < text.size());
  return parts;
}

std::string arguments_text(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos ? "{}" : text;
}

Json arguments_object(const std::string& text) {
  std::string json = arguments_text(text);
  const Result<Json> read = text::parse_exact_json(json, "arguments", kMostArgumentsDepth);
  if (!read.ok() || !read.value().is_object()) return Json{{"arguments", text}};
  if (!Json::accept(json)) return read.value();  // an escape of half a surrogate pair is mended
  std::erase_if(json, [](char c) { return c == '\n' || c == '\r' || c == '\t'; });  // only between values
  return spliced(json);
}

Callable::Callable(const Tools& tools) {
  for (const auto& [name, tool, strict] : tools.functions) {
    if (tools.may_call(tool.name)) names_.emplace(tool.name, name);
  }
  for (const auto& [name, tool, strict] : tools.functions) {  // a model may leave the namespace out
    if (tools.may_call(tool.name)) names_.emplace(name.name, name);
  }
}

std::string Callable::name_of(const std::string& recipient) const {
  std::string name = recipient.substr(recipient.starts_with(kFunctions) ? kFunctions.size() : 0);
  if (names_.contains(name)) return name;
  if (names_.contains(recipient)) return recipient;
  // Models write the next part of a header to the name: "functions.readcommentary", "functions.read:".
  while (!name.empty() && !is_name(name.substr(name.size() - 1))) name.pop_back();
  for (const std::string_view part : {"commentary", "analysis", "final", "json", "code"})
    if (name.ends_with(part)) name.resize(name.size() - part.size());
  return names_.contains(name) ? name : "";
}

Conversation new_conversation(const Tools& tools, const AnswerForm& form, const Thinking& thinking,
                              const Service& service) {
  Conversation conversation{
      .format = form.format, .reasoning_effort = thinking.effort, .current_date = service.today};
  if (!thinking.identity.empty()) conversation.model_identity = thinking.identity;
  if (!tools.offered()) return conversation;
  for (const OfferedFunction& function : tools.functions) conversation.tools.push_back(function.tool);
  return conversation;
}

std::variant<AnswerGrammar, ApiError> grammar_of(const Tools& tools, const AnswerForm& form, bool chat,
                                                 const Service& service) {
  AnswerFormat format = form.given;
  format.chat = chat;
  format.must_call = tools.must_call();
  bool held = !form.empty() || tools.must_call() || (tools.offered() && tools.allowed);
  for (const auto& [name, tool, strict] : tools.functions) {
    if (!tools.may_call(tool.name)) continue;
    held = held || strict;
    format.functions.push_back({tool.name, strict || tools.must_call() ? schema_of(tool) : "", strict});
  }
  if (!held) return AnswerGrammar();
  std::optional<Result<AnswerGrammar>> grammar = compiled(format, service);
  if (!grammar) return ApiError{.needs_compilation = true};
  if (!grammar->ok()) return api_error(grammar->status(), form.empty() ? "tools" : form.field);
  return std::move(*grammar).value();
}

}  // namespace moesaic::openai
