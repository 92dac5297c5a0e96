#include "text/limited_json.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace moesaic::text {
namespace {

constexpr uintmax_t kMaxFileBytes = 256 << 20;

bool too_deep(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> parse_limited_json(std::string_view json, const std::string& name) {
  if (too_deep(json)) return invalid("{}: the JSON is nested deeper than {} levels", name, kMaxJsonDepth);
  Json parsed = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return invalid("{}: not valid JSON", name);
  return parsed;
}

std::string string_or(const Json& object, const char* key, const std::string& fallback) {
  if (!object.is_object()) return fallback;
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : fallback;
}

Result<std::string> read_text_file(const std::string& path) {
  std::error_code failure;
  const uintmax_t size = std::filesystem::file_size(path, failure);
  if (failure) return error(StatusCode::kNotFound, "{}: cannot be read: {}", path, failure.message());
  if (size > kMaxFileBytes) return invalid("{}: {} bytes are too many for a tokenizer's file", path, size);
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!file || file.gcount() != static_cast<std::streamsize>(size))
    return error(StatusCode::kIo, "{}: only {} of {} bytes could be read", path, file.gcount(), size);
  return bytes;
}

}  // namespace moesaic::text
