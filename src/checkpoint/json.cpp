#include "checkpoint/json.h"

#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/file_cache.h"
#include "checkpoint/mapped_file.h"

namespace moesaic {
namespace {

// Finds what would make a value ambiguous, and builds nothing. nlohmann's own callbacks cannot do this: they
// look through an object's members again at the end of each of its objects.
class KeyWatch final : public SilentSax<Json> {
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
    if (!open_.back().insert(key).second && duplicate_.empty()) duplicate_ = key;
    return true;
  }

  // The first key that stands twice in one object.
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::unordered_set<std::string>> open_;
  std::string duplicate_;
};

template <typename AnyJson>
Result<AnyJson> parse(std::string_view text, const std::string& name) {
  JsonLimits limits{.depth = 32};
  if (std::is_same_v<AnyJson, OrderedJson>) limits.comparisons = kMaxMemberComparisons;
  RETURN_IF_ERROR(check_extent(text, limits, name));
  KeyWatch watch;
  if (!Json::sax_parse(text.begin(), text.end(), &watch)) return invalid("{}: {}", name, json_fault(text));
  if (!watch.duplicate().empty())
    return invalid("{}: the key '{}' stands twice", name, watch.duplicate().substr(0, 80));
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
