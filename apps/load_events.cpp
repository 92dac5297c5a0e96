#include "load_events.h"

#include "base/whole_json.h"
#include "checkpoint/json.h"

namespace moesaic::app {
namespace {

// "error": "words", or {"message": "words"}.
std::string error_of(const Json& error) {
  if (error.is_string()) return error.get<std::string>();
  const std::string message = string_or(error, "message", "");
  return message.empty() ? "an event tells of an error" : message;
}

std::optional<uint64_t> usage_of(const Json& json) {
  const Json& usage = member(json, "usage");
  if (usage.is_null()) return {};
  const Json& tokens = member(usage, "completion_tokens");
  return tokens.is_number_unsigned() ? tokens.get<uint64_t>() : 0;
}

}  // namespace

LoadEvent read_load_event(std::string_view data) {
  if (data == "[DONE]") return {.last = true};
  const Json json = parse_whole_json<Json>(data);
  if (!json.is_object()) return {.error = "an event is no JSON object"};
  if (const Json& error = member(json, "error"); !error.is_null()) return {.error = error_of(error)};
  const Json& choices = member(json, "choices");
  if (!choices.is_array() || choices.empty()) return {.usage = usage_of(json)};
  const Json& choice = choices.front();
  return {.text = string_or(choice, "text", ""),
          .last = !string_or(choice, "finish_reason", "").empty(),
          .usage = usage_of(json)};
}

bool LoadEventLines::add(std::string_view bytes) {
  lines_.erase(0, at_);
  at_ = 0;
  lines_ += bytes;
  return lines_.size() <= kMostLine;
}

bool LoadEventLines::next(std::string& data) {
  constexpr std::string_view kData = "data:";
  for (size_t end; (end = lines_.find('\n', at_)) != std::string::npos;) {
    std::string_view line = std::string_view(lines_).substr(at_, end - at_);
    at_ = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with(kData)) continue;
    line.remove_prefix(kData.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    data = line;
    return true;
  }
  return false;
}

}  // namespace moesaic::app
