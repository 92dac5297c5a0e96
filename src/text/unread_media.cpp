#include "text/unread_media.h"

#include <fmt/format.h>

#include <utility>

namespace moesaic::text {

std::string_view medium_of(const OrderedJson& part) {
  constexpr std::pair<std::string_view, std::string_view> kMedia[] = {
      {"image", "image"},        {"image_url", "image"},    {"image_file", "image"},
      {"input_image", "image"},  {"output_image", "image"}, {"computer_screenshot", "image"},
      {"audio", "audio"},        {"audio_url", "audio"},    {"input_audio", "audio"},
      {"output_audio", "audio"}, {"video", "video"},        {"video_url", "video"},
      {"input_video", "video"},  {"file", "file"},          {"file_url", "file"},
      {"input_file", "file"},    {"document", "document"}};
  const std::string type = string_or(part, "type", "");
  for (const auto& [name, medium] : kMedia) {
    if (type == name) return medium;
  }
  return {};
}

std::string omitted(std::string_view medium) {
  return fmt::format("[{} omitted: this model reads text only]", medium);
}

namespace {

std::string role_of(const OrderedJson& message) { return string_or(message, "role", ""); }
bool is_instruction(const std::string& role) { return role == "system" || role == "developer"; }

}  // namespace

size_t question_of(const OrderedJson& messages, bool continues) {
  for (size_t i = messages.size() - (continues && !messages.empty() ? 1 : 0); i-- > 0;) {
    const std::string role = role_of(messages[i]);
    if (role == "assistant") break;
    if (role != "user") continue;
    size_t before = i;
    while (before > 0 && is_instruction(role_of(messages[before - 1]))) --before;
    return before > 0 && role_of(messages[before - 1]) == "tool" ? messages.size() : i;
  }
  return messages.size();
}

Media media_of(const OrderedJson& message, bool is_question) {
  return is_question || is_instruction(role_of(message)) ? Media::kRefused : Media::kNoted;
}

}  // namespace moesaic::text
