#include "openai/tool_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "openai/sse.h"
#include "text/harmony_tools.h"

namespace moesaic::openai {
namespace {

constexpr size_t kMaxTools = 512;
constexpr std::string_view kFunctions = "functions.";

// {function: {name, ...}}, or the function itself.
const Json& function_of(const Json& tool) {
  const auto at = tool.find("function");
  return at != tool.end() && at->is_object() ? *at : tool;
}

bool is_name(const std::string& name) {
  constexpr std::string_view kMarks = "_-.";
  const auto fits = [&](unsigned char c) {
    return std::isalnum(c) != 0 || kMarks.find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), fits);
}

// Why the model could not be told of it; empty: it can.
std::string wrong_parameters(const Json& function) {
  const auto parameters = function.find("parameters");
  if (parameters == function.end() || parameters->is_null()) return {};
  if (!parameters->is_object()) return "'s parameters are not an object";
  return dump(*parameters).size() > kMaxParametersBytes
             ? fmt::format("'s parameters have more than {} bytes", kMaxParametersBytes)
             : "";
}

// where: "tool 3". space: the namespace that it is in.
void add_function(Fields& fields, const Json& tool, const std::string& where, const std::string& space,
                  Tools& tools) {
  Json function = function_of(tool);
  const FunctionName name{.name = text::string_or(function, "name", ""), .space = space};
  if (!is_name(name.name) || !is_name(name.told()))
    return fields.refuse("tools", where + " has no name of letters, digits, '_', '-' and '.'");
  const std::string wrong = wrong_parameters(function);
  if (!wrong.empty()) return fields.refuse("tools", where + wrong);
  function["name"] = name.told();
  tools.list.push_back({{"type", "function"}, {"function", std::move(function)}});
  tools.names.push_back(name);
}

void read_tools_of(Fields& fields, const Json& list, const std::string& where, const std::string& space,
                   Tools& tools) {
  if (!list.is_array()) return fields.refuse("tools", where + "must be an array");
  for (size_t i = 0; i < list.size() && fields.ok(); ++i) {
    const std::string one = fmt::format("{}tool {}", where, i);
    if (!list[i].is_object()) return fields.refuse("tools", one + " is not an object");
    const std::string type = text::string_or(list[i], "type", "function");
    if (type == "function") add_function(fields, list[i], one, space, tools);
    if (type == "namespace" && space.empty()) {
      const std::string name = text::string_or(list[i], "name", "");
      if (!is_name(name))
        return fields.refuse("tools", one + " has no name of letters, digits, '_', '-' and '.'");
      read_tools_of(fields, list[i].value("tools", Json::array()), one + ": ", name, tools);
    }
    if (tools.list.size() > kMaxTools || i >= kMaxTools)
      return fields.refuse("tools", fmt::format("more than {} tools", kMaxTools));
  }
}

void read_list(Fields& fields, Tools& tools) {
  const Json* list = fields.find("tools");
  if (list != nullptr) read_tools_of(fields, *list, "", "", tools);
}

// What the model is told of the function that a choice names.
std::string told_name(const Json& choice) {
  const Json& function = function_of(choice);
  return FunctionName{.name = text::string_or(function, "name", ""),
                      .space = text::string_or(function, "namespace", "")}
      .told();
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_tool(const Tools& tools, const std::string& name) {
  return std::any_of(tools.list.begin(), tools.list.end(),
                     [&](const Json& tool) { return text::string_or(tool["function"], "name", "") == name; });
}

// {type: allowed_tools, mode, tools}, in chat completions with an object allowed_tools around the two. The
// model is told all tools, so that prompts begin alike, and can call these.
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
    const std::string name = told_name(tool);
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
  } else if (choice->is_object() && text::string_or(*choice, "type", "") == "function") {
    tools.choice = Choice::kNamed;
    tools.named = told_name(*choice);
    if (!has_tool(tools, tools.named))
      return fields.refuse("tool_choice", "names a function that is not among the tools");
  } else if (choice->is_object() && text::string_or(*choice, "type", "") == "allowed_tools") {
    read_allowed(fields, *choice, tools);
  } else {
    return fields.refuse("tool_choice",
                         "must be none, auto, required, {\"type\": \"function\", ...} or {\"type\": "
                         "\"allowed_tools\", ...}");
  }
  if (tools.choice == Choice::kRequired && tools.list.empty())
    fields.refuse("tool_choice", "required, but there are no tools");
}

// A JSON schema; a function without one takes nothing.
std::string parameters_of(const Json& function) {
  const auto at = function.find("parameters");
  if (at != function.end() && at->is_object()) return dump(*at);
  return R"({"type": "object", "properties": {}, "additionalProperties": false})";
}

// Nothing where it is not compiled and may not be.
std::optional<Result<AnswerGrammar>> compiled(const AnswerFormat& format, const Service& service) {
  if (service.grammars == nullptr) return AnswerGrammar::compile(format);
  if (service.may_compile) return service.grammars->get(format);
  return service.grammars->find(format);
}

}  // namespace

std::string FunctionName::told() const {
  if (space.empty()) return name;
  return space + (space.ends_with("__") ? "" : "__") + name;
}

bool Tools::may_call(const std::string& name) const {
  return offered() && (choice != Choice::kNamed || name == named) && (!allowed || contains(*allowed, name));
}

std::string Tools::told(const FunctionName& name) const {
  return has_tool(*this, name.told()) ? name.told() : name.name;
}

Tools read_tools(Fields& fields) {
  Tools tools;
  read_list(fields, tools);
  read_choice(fields, tools);
  return tools;
}

Callable::Callable(const Tools& tools) {
  for (const FunctionName& name : tools.names) {
    if (tools.may_call(name.told())) names_.emplace(name.told(), name);
  }
  for (const FunctionName& name : tools.names) {  // a model may leave the namespace out
    if (tools.may_call(name.told())) names_.emplace(name.name, name);
  }
}

std::string Callable::name_of(const std::string& recipient) const {
  if (recipient.starts_with(kFunctions)) {
    std::string name = recipient.substr(kFunctions.size());
    if (names_.contains(name)) return name;
  }
  return names_.contains(recipient) ? recipient : "";
}

std::variant<AnswerGrammar, ApiError> grammar_of(const Tools& tools, const AnswerForm& form, bool chat,
                                                 const Service& service) {
  AnswerFormat format{
      .chat = chat, .json_schema = form.schema, .functions = {}, .must_call = tools.must_call()};
  bool held = !form.empty() || tools.must_call() || (tools.offered() && tools.allowed);
  for (const Json& tool : tools.list) {
    const Json& function = tool["function"];
    const std::string name = text::string_or(function, "name", "");
    if (!tools.may_call(name)) continue;
    const bool strict = function.value("strict", Json()) == true;
    held = held || strict;
    format.functions.push_back({name, strict || tools.must_call() ? parameters_of(function) : ""});
  }
  if (!held) return AnswerGrammar();
  std::optional<Result<AnswerGrammar>> grammar = compiled(format, service);
  if (!grammar) return ApiError{.needs_compilation = true};
  if (!grammar->ok()) return api_error(grammar->status(), form.empty() ? "tools" : form.field);
  return std::move(*grammar).value();
}

}  // namespace moesaic::openai
