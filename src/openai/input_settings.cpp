#include "openai/input_settings.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "text/limited_json.h"

namespace moesaic::openai {
namespace {

using text::string_or;

bool is_object_or_null(const Json& json) { return json.is_object() || json.is_null(); }

// The member of an object in an item: reasoning.effort, text.format. What it has beside that is refused,
// since the answer would be another.
bool read_setting(Fields& fields, const Json& item, size_t index, const char* object, const char* name,
                  Json& value) {
  const Json holder = item.value(object, Json());
  if (!is_object_or_null(holder)) {
    fields.refuse("input", fmt::format("item {}: {} must be an object", index, object));
    return false;
  }
  for (const auto& [key, member] : holder.items()) {
    if (member.is_null()) continue;
    if (key == name) {
      value = member;
    } else {
      fields.refuse("input",
                    fmt::format("item {}: {}.{} cannot be updated", index, object, key.substr(0, 40)));
      return false;
    }
  }
  return true;
}

// effort and format stay as they are where the item has none.
void read_update(Fields& fields, const Json& item, size_t index, Json& effort, Json& format) {
  for (const auto& [key, member] : item.items()) {
    if (key != "type" && key != "id" && key != "reasoning" && key != "text" && !member.is_null())
      return fields.refuse("input", fmt::format("item {}: {} cannot be updated", index, key.substr(0, 40)));
  }
  if (read_setting(fields, item, index, "reasoning", "effort", effort))
    read_setting(fields, item, index, "text", "format", format);
}

bool is_of(const Json& item, const char* type) { return string_or(item, "type", "") == type; }

// The tools that items offer, in their order.
Json tools_of_items(Fields& fields) {
  Json tools = Json::array();
  const Json* input = fields.find("input");
  for (size_t i = 0; input != nullptr && input->is_array() && i < input->size(); ++i) {
    const Json& item = (*input)[i];
    if (!is_of(item, "additional_tools") && !is_of(item, "tool_search_output")) continue;
    const Json list = item.value("tools", Json());
    if (!list.is_array() && !list.is_null())
      fields.refuse("input", fmt::format("item {}: tools must be an array", i));
    for (const Json& tool : list) tools.push_back(tool);
  }
  return tools;
}

void drop_repeated(Tools& tools) {
  std::set<std::string> names;
  std::erase_if(tools.functions,
                [&](const OfferedFunction& function) { return !names.insert(function.tool.name).second; });
}

}  // namespace

Tools read_all_tools(Fields& fields) {
  Json more = tools_of_items(fields);
  const Json* given = fields.find("tools");
  if (more.empty() || (given != nullptr && !given->is_array())) return read_tools(fields);
  Json all = {{"tools", given == nullptr ? Json::array() : *given}};
  for (Json& tool : more) all["tools"].push_back(std::move(tool));
  if (const Json* choice = fields.find("tool_choice")) all["tool_choice"] = *choice;
  Fields inner(all);
  Tools tools = read_tools(inner);
  if (!inner.ok()) fields.refuse(*inner.refusal());
  drop_repeated(tools);
  return tools;
}

void read_updates(Fields& fields, Thinking& thinking, AnswerForm& form, Json& format) {
  Json effort, new_format;
  const Json* input = fields.find("input");
  for (size_t i = 0; input != nullptr && input->is_array() && i < input->size(); ++i) {
    if (is_of((*input)[i], "configuration_update")) read_update(fields, (*input)[i], i, effort, new_format);
  }
  if (!effort.is_null()) {
    const Json reasoning = {{"reasoning", {{"effort", effort}}}};
    Fields inner(reasoning);
    thinking.effort = read_thinking(inner).effort;
    if (!inner.ok()) fields.refuse("input", inner.refusal()->message);
  }
  if (new_format.is_null()) return;
  form = {};
  read_format(fields, "input", &new_format, form);
  format = std::move(new_format);
}

}  // namespace moesaic::openai
