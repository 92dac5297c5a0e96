#include "checkpoint/json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "checkpoint/mapped_file.h"

namespace moesaic {
namespace {

// nlohmann's parser recurses only in its destructor, but a limit before parsing keeps hostile depth from
// costing at all.
bool too_deep(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Notes the first key that stands twice in one object.
class KeyWatch {
 public:
  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key && !open_.back().insert(parsed.get<std::string>()).second &&
        duplicate_.empty()) {
      duplicate_ = parsed.get<std::string>();
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& name) {
  if (too_deep(text, 32)) return invalid("{}: the JSON is nested deeper than 32 levels", name);
  KeyWatch watch;
  const Json::parser_callback_t callback = [&watch](int depth, Json::parse_event_t event, Json& parsed) {
    return watch(depth, event, parsed);
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid("{}: not valid JSON", name);
  if (!watch.duplicate().empty())
    return invalid("{}: the key '{}' stands twice", name, watch.duplicate().substr(0, 80));
  return json;
}

Result<Json> read_json_file(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  constexpr size_t kMaxJson = 256 << 20;
  if (file->bytes().size() > kMaxJson)
    return invalid("{}: larger than {} MB, not a JSON file of a model", path, kMaxJson >> 20);
  return parse_json({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, path);
}

std::string printable(std::string message) {
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return message;
}

}  // namespace moesaic
