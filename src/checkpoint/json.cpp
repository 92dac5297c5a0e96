#include "checkpoint/json.h"

#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/whole_json.h"
#include "checkpoint/mapped_file.h"

namespace moesaic {
namespace {

// Before parsing, so that neither hostile depth nor a great number of small values costs anything.
Status check_extent(std::string_view text, const std::string& name) {
  constexpr int kMostDepth = 32;
  int depth = 0;
  int64_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > kMostDepth)
        return invalid("{}: the JSON is nested deeper than {} levels", name, kMostDepth);
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    }
  }
  return values <= kMostFileValues ? Status()
                                   : invalid("{}: the JSON has more than {} values", name, kMostFileValues);
}

// Finds what would make a value slow to build or ambiguous, and builds nothing. nlohmann's own callbacks
// cannot do this: they look through an object's members again at the end of each of its objects.
template <typename AnyJson>
class KeyWatch final : public SilentSax<AnyJson> {
 public:
  bool start_object(std::size_t) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool key(std::string& key) override {
    comparisons_ += open_.back().size();
    if (!open_.back().insert(key).second && duplicate_.empty()) duplicate_ = key;
    return true;
  }

  // The first key that stands twice in one object.
  const std::string& duplicate() const { return duplicate_; }
  // Counts how often a key is compared with those before it where an object keeps its members in a row.
  uint64_t comparisons() const { return comparisons_; }

 private:
  std::vector<std::unordered_set<std::string>> open_;
  std::string duplicate_;
  uint64_t comparisons_ = 0;
};

template <typename AnyJson>
Result<AnyJson> parse(std::string_view text, const std::string& name) {
  constexpr uint64_t kMostComparisons = 60'000'000;
  RETURN_IF_ERROR(check_extent(text, name));
  KeyWatch<AnyJson> watch;
  if (!AnyJson::sax_parse(text.begin(), text.end(), &watch)) return invalid("{}: {}", name, json_fault(text));
  if (!watch.duplicate().empty())
    return invalid("{}: the key '{}' stands twice", name, watch.duplicate().substr(0, 80));
  if (std::is_same_v<AnyJson, OrderedJson> && watch.comparisons() > kMostComparisons)
    return invalid("{}: a JSON object has too many members", name);
  AnyJson json = parse_whole_json<AnyJson>(text);
  if (json.is_discarded()) return invalid("{}: {}", name, json_fault(text));
  return json;
}

template <typename AnyJson>
Result<AnyJson> read_file(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  constexpr size_t kMaxJson = 6 << 20;
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

Json small_json(const std::string& path) {
  constexpr size_t kMost = size_t{1} << 20;
  const Result<std::string> text = read_whole(path, kMost);
  Result<Json> json = text.ok() ? parse_json(text.value(), path) : text.status();
  return json.ok() ? std::move(json).value() : Json();
}

const Json& member(const Json& object, const char* name) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto it = object.find(name);
  return it != object.end() ? *it : kNone;
}

std::string text_member(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

// nlohmann's dump throws on other texts.
bool is_utf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::exception&) {
    return false;
  }
}

std::string printable(std::string message) {
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return message;
}

}  // namespace moesaic
