#include "openai/argument_style.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "openai/sse.h"
#include "openai/tool_choice.h"
#include "text/conversation_builder.h"

namespace moesaic::openai {
namespace {

struct Style {
  std::string_view mark;   // in the id
  std::string_view comma;  // between members
  std::string_view line;   // before each member and the end of the outermost object; further in, deeper
};

// Python's json.dumps without and with indent=2.
constexpr std::array<Style, 2> kStyles = {{{"_sp", ", ", ""}, {"_ln", ",", "\n"}}};
// Deeper values are compact: with lines of their own, small ones would take many times their bytes.
constexpr size_t kMostIndent = 16;

// line: Style::line, as deep as the value is.
void append(const Json& value, const Style& style, const std::string& line, std::string& text) {
  if (!value.is_structured() || value.empty() || line.size() > kMostIndent) {
    text += text::compact_json(value);
    return;
  }
  const std::string inner = line.empty() ? "" : line + "  ";
  text += value.is_object() ? '{' : '[';
  for (auto member = value.begin(); member != value.end(); ++member) {
    if (member != value.begin()) text += style.comma;
    text += inner;
    if (value.is_object()) text += dump(Json(member.key())) + ": ";
    append(*member, style, inner, text);
  }
  text += line;
  text += value.is_object() ? '}' : ']';
}

std::string written(const Json& value, const Style& style) {
  std::string text;
  append(value, style, std::string(style.line), text);
  return text;
}

}  // namespace

std::string object_call_id(const char* prefix, const TextPiece& call) {
  const Result<Json> read = text::parse_exact_json(call.text, "arguments");
  if (!read.ok() || text::compact_json(read.value()) == call.text) return call_id(prefix, call);
  const auto* style = std::ranges::find_if(
      kStyles, [&](const Style& one) { return written(read.value(), one) == call.text; });
  return call_id(prefix, call, style == kStyles.end() ? "" : style->mark);
}

std::string text_of_arguments(const Json& arguments, std::string_view id) {
  if (id.ends_with(kRecipientLast)) id.remove_suffix(kRecipientLast.size());
  const auto* style = std::ranges::find_if(kStyles, [&](const Style& one) { return id.ends_with(one.mark); });
  return style == kStyles.end() ? text::compact_json(arguments) : written(arguments, *style);
}

}  // namespace moesaic::openai
