#include "text/harmony_tools.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "text/limited_json.h"

namespace moesaic {
namespace {

using text::OrderedJson;

// Indented, a short value deep in a schema takes many times its bytes. What fits a context is far shorter.
constexpr size_t kMostBytes = 16 << 20;
bool too_long(const std::string& text) { return text.size() > kMostBytes; }

// A member that is a string.
const std::string* text_member(const OrderedJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get_ptr<const std::string*>() : nullptr;
}

// A member that is an array.
const OrderedJson* array_member(const OrderedJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at != object.end() && at->is_array() ? &*at : nullptr;
}

bool has_enum(const OrderedJson& schema) {
  const OrderedJson* values = array_member(schema, "enum");
  return values != nullptr && !values->empty();
}

// "default: ..." or nothing. The reference leaves an enum's default without quotes beside a property, and
// escapes it as JSON in a bare union.
std::string default_comment(const OrderedJson& schema, bool bare_union) {
  if (!schema.is_object() || !schema.contains("default")) return "";
  const std::string* value = text_member(schema, "default");
  if (value == nullptr || (bare_union && has_enum(schema)))
    return fmt::format("default: {}", text::compact_json(schema["default"]));
  const char* quote = has_enum(schema) ? "" : "\"";
  return fmt::format("default: {}{}{}", quote, *value, quote);
}

std::string type_of(const OrderedJson& schema, const std::string& indent);

std::string nullable_type_of(const OrderedJson& schema, const std::string& indent) {
  std::string type = type_of(schema, indent);
  const bool nullable = schema.is_object() && schema.contains("nullable") && schema["nullable"] == true;
  if (nullable && type.find("null") == std::string::npos) type += " | null";
  return type;
}

std::string variant_of(const OrderedJson& variant, const std::string& indent, const std::string* description,
                       bool bare_union) {
  std::string line = indent + " | " + nullable_type_of(variant, indent + "   ");
  const std::string fallback = default_comment(variant, bare_union);
  if (description != nullptr || !fallback.empty()) line += " // ";
  if (description != nullptr) line += *description + (fallback.empty() ? "" : " ");
  return line + fallback;
}

std::string bare_union_of(const OrderedJson& variants, const std::string& indent) {
  std::string text;
  for (const OrderedJson& variant : variants) {
    if (too_long(text)) break;
    text += fmt::format("\n{}", variant_of(variant, indent, text_member(variant, "description"), true));
  }
  return text;
}

std::string union_of_names(const OrderedJson& types) {
  std::string text;
  for (const OrderedJson& type : types) {
    if (!type.is_string()) continue;
    const std::string name = type.get<std::string>();
    text += fmt::format("{}{}", text.empty() ? "" : " | ", name == "integer" ? "number" : name);
  }
  return text;
}

std::string string_type(const OrderedJson& schema) {
  std::string text;
  if (const OrderedJson* values = array_member(schema, "enum")) {
    for (const OrderedJson& value : *values)
      if (value.is_string())
        text += fmt::format("{}\"{}\"", text.empty() ? "" : " | ", value.get<std::string>());
  }
  return text.empty() ? "string" : text;
}

std::string comment_line(const std::string& indent, const std::string& text) {
  return fmt::format("{}// {}\n", indent, text);
}

std::string comments_above(const OrderedJson& schema, const std::string& indent) {
  std::string text;
  if (const std::string* title = text_member(schema, "title"))
    text += comment_line(indent, *title) + indent + "//\n";
  const std::string* description = text_member(schema, "description");
  const bool is_union = schema.is_object() && schema.contains("oneOf");
  if (description != nullptr && !is_union) text += comment_line(indent, *description);
  const OrderedJson* examples = array_member(schema, "examples");
  if (examples == nullptr || examples->empty()) return text;
  text += comment_line(indent, "Examples:");
  for (const OrderedJson& example : *examples) {
    if (too_long(text)) break;
    if (example.is_string())
      text += comment_line(indent, fmt::format("- \"{}\"", example.get<std::string>()));
  }
  return text;
}

// A property with variants: what all share stands above, what differs behind each variant.
std::string union_property(const std::string& name, const OrderedJson& schema, const OrderedJson& variants,
                           const std::string& indent) {
  const std::string* shared = text_member(schema, "description");
  const std::string* first = variants.empty() ? nullptr : text_member(variants[0], "description");
  const bool above = shared != nullptr && !(first != nullptr && *first == *shared);
  std::string text = above ? comment_line(indent, *shared) : "";
  if (const std::string fallback = default_comment(schema, false); !fallback.empty())
    text += comment_line(indent, fallback);
  text += indent + name + ":\n";
  for (size_t i = 0; i < variants.size() && !too_long(text); ++i) {
    const std::string* own = text_member(variants[i], "description");
    const bool repeated = own != nullptr && shared != nullptr && *own == *shared;
    const bool shown = own != nullptr && !repeated && !(i == 0 && above);
    text += variant_of(variants[i], indent, shown ? own : nullptr, false) + "\n";
  }
  return text + indent + ",\n";
}

std::string property(const std::string& key, const OrderedJson& schema, bool required,
                     const std::string& indent) {
  const std::string name = required ? key : key + "?";
  std::string text = comments_above(schema, indent);
  if (const OrderedJson* variants = array_member(schema, "oneOf"))
    return text + union_property(name, schema, *variants, indent);
  text += indent + name + ": " + nullable_type_of(schema, indent + "    ") + ",";
  const bool is_union = schema.is_object() && schema.contains("oneOf");
  if (const std::string fallback = default_comment(schema, false); !is_union && !fallback.empty())
    text += " // " + fallback;
  return text + "\n";
}

std::set<std::string> required_names(const OrderedJson& schema) {
  std::set<std::string> names;
  if (const OrderedJson* required = array_member(schema, "required")) {
    for (const OrderedJson& name : *required)
      if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

std::string object_type(const OrderedJson& schema, const std::string& indent) {
  std::string text;
  if (const std::string* description = text_member(schema, "description"))
    text = comment_line(indent, *description);
  text += "{\n";
  const auto properties = schema.find("properties");
  const std::set<std::string> required = required_names(schema);
  if (properties != schema.end() && properties->is_object()) {
    for (const auto& [key, value] : properties->items()) {
      if (too_long(text)) break;
      text += property(key, value, required.count(key) > 0, indent);
    }
  }
  return text + indent + "}";
}

std::string type_of(const OrderedJson& schema, const std::string& indent) {
  if (const OrderedJson* variants = array_member(schema, "oneOf")) return bare_union_of(*variants, indent);
  if (const OrderedJson* types = array_member(schema, "type")) {
    if (std::string names = union_of_names(*types); !names.empty()) return names;
  }
  const std::string* type = text_member(schema, "type");
  if (type == nullptr) return "any";
  if (*type == "object") return object_type(schema, indent);
  if (*type == "string") return string_type(schema);
  if (*type == "number" || *type == "integer") return "number";
  if (*type == "boolean") return "boolean";
  if (*type != "array") return "any";
  return schema.contains("items") ? type_of(schema["items"], indent) + "[]" : "Array<any>";
}

// A description's lines as comments; a last line break ends the last line.
std::string description_comment(std::string_view description) {
  std::string text;
  while (!description.empty()) {
    const size_t end = std::min(description.find('\n'), description.size());
    std::string_view line = description.substr(0, end);
    if (end < description.size() && line.ends_with('\r')) line.remove_suffix(1);
    text += fmt::format("// {}\n", line);
    description.remove_prefix(std::min(end + 1, description.size()));
  }
  return text;
}

Result<std::string> render_tool(const Tool& tool) {
  const std::string head = fmt::format("{}type {} = (", description_comment(tool.description), tool.name);
  if (tool.parameters.empty()) return head + ") => any;\n";
  const OrderedJson& schema = tool.parameters.parsed()->value;
  if (!schema.is_object())
    return invalid("parameters of tool '{}': not a JSON object", tool.name.substr(0, 80));
  return fmt::format("{}_: {}) => any;\n", head, type_of(schema, ""));
}

}  // namespace

Result<std::string> render_tools(const std::vector<Tool>& tools) {
  std::string text = "# Tools\n\n## functions\n\nnamespace functions {\n\n";
  for (const Tool& tool : tools) {
    ASSIGN_OR_RETURN(const std::string rendered, render_tool(tool));
    text += rendered + "\n";
    if (too_long(text))
      return invalid("tools: as the model reads them they are longer than {} MB", kMostBytes >> 20);
  }
  return text + "} // namespace functions";
}

}  // namespace moesaic
