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
template <typename AnyJson>
class KeyWatch {
 public:
  using Event = typename AnyJson::parse_event_t;
  bool operator()(int, Event event, AnyJson& parsed) {
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event != Event::key) return true;
    const auto key = parsed.template get<std::string>();
    if (!open_.back().insert(key).second && duplicate_.empty()) duplicate_ = key;
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
};

template <typename AnyJson>
Result<AnyJson> parse(std::string_view text, const std::string& name) {
  if (too_deep(text, 32)) return invalid("{}: the JSON is nested deeper than 32 levels", name);
  KeyWatch<AnyJson> watch;
  const typename AnyJson::parser_callback_t callback =
      [&watch](int depth, typename AnyJson::parse_event_t event, AnyJson& parsed) {
        return watch(depth, event, parsed);
      };
  AnyJson json = AnyJson::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid("{}: not valid JSON", name);
  if (!watch.duplicate().empty())
    return invalid("{}: the key '{}' stands twice", name, watch.duplicate().substr(0, 80));
  return json;
}

template <typename AnyJson>
Result<AnyJson> read_file(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  constexpr size_t kMaxJson = 256 << 20;
  if (file->bytes().size() > kMaxJson)
    return invalid("{}: larger than {} MB, not a JSON file of a model", path, kMaxJson >> 20);
  return parse<AnyJson>({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, path);
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& name) { return parse<Json>(text, name); }
Result<OrderedJson> parse_ordered_json(std::string_view text, const std::string& name) {
  return parse<OrderedJson>(text, name);
}
Result<Json> read_json_file(const std::string& path) { return read_file<Json>(path); }
Result<OrderedJson> read_ordered_json_file(const std::string& path) { return read_file<OrderedJson>(path); }

std::string printable(std::string message) {
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return message;
}

}  // namespace moesaic
