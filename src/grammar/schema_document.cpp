#include "grammar/schema_document.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "base/whole_json.h"
#include "text/utf8.h"

namespace moesaic::grammar {
namespace {

constexpr size_t kIndexedFrom = 16;

// Builds values member by member.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string failure = "";  // empty where the text is no JSON

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return open(Json::object()); }
  bool start_array(size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(string_t& name) override {
    open_.back().key = name;
    return true;
  }
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  struct Open {
    Json* value;
    std::string key = {};
    std::unordered_map<std::string, size_t> members = {};
  };

  bool fail(std::string why) { return failure = std::move(why), false; }
  // Finds the place of the next value. The last of several members with the same name counts.
  bool place(Json value, Json*& at) {
    if (open_.empty()) return root = std::move(value), at = &root, true;
    Open& top = open_.back();
    if (top.value->is_array()) {
      top.value->push_back(std::move(value));
      return at = &top.value->back(), true;
    }
    auto& list = static_cast<Json::object_t::Container&>(*top.value->get_ptr<Json::object_t*>());
    const auto [entry, fresh] = top.members.try_emplace(top.key, list.size());
    if (list.size() >= SchemaDocument::kMaxMembers && fresh)
      return fail(fmt::format("a JSON object has more than {} members", SchemaDocument::kMaxMembers));
    if (fresh)
      list.emplace_back(top.key, std::move(value));
    else
      list[entry->second].second = std::move(value);
    return at = &list[entry->second].second, true;
  }
  bool put(Json value) {
    Json* at = nullptr;
    return place(std::move(value), at);
  }
  bool open(Json empty) {
    if (open_.size() >= text::kMaxJsonDepth)
      return fail(fmt::format("the JSON is nested deeper than {} levels", text::kMaxJsonDepth));
    Json* at = nullptr;
    if (!place(std::move(empty), at)) return false;
    open_.push_back({at});
    return true;
  }

  std::vector<Open> open_;
};

// Members that hold values, in which null means null.
constexpr std::array<std::string_view, 5> kData = {"enum", "const", "default", "example", "examples"};
// Members that hold schemas by name.
constexpr std::array<std::string_view, 5> kMaps = {"properties", "patternProperties", "$defs", "definitions",
                                                   "dependentSchemas"};

// In linear time, unlike nlohmann's erase.
void drop_null_members(Json& schema) {
  const auto is_absent = [](const auto& member) {
    return member.second.is_null() && member.first != "const" && member.first != "default" &&
           member.first != "example";
  };
  auto& list = static_cast<Json::object_t::Container&>(*schema.get_ptr<Json::object_t*>());
  if (std::none_of(list.begin(), list.end(), is_absent)) return;
  Json rest = Json::object();
  auto& kept = static_cast<Json::object_t::Container&>(*rest.get_ptr<Json::object_t*>());
  for (auto& member : list) {
    if (!is_absent(member)) kept.emplace_back(member.first, std::move(member.second));
  }
  schema = std::move(rest);
}

// A keyword that is null is absent: so Go writes a list that is nil, and other languages a field without a
// value.
void drop_null_keywords(Json& schema) {
  if (schema.is_array()) {
    for (Json& one : schema) drop_null_keywords(one);
  }
  if (!schema.is_object()) return;
  drop_null_members(schema);
  for (auto member = schema.begin(); member != schema.end(); ++member) {
    if (is_one_of(kData, member.key())) continue;
    if (member->is_object() && is_one_of(kMaps, member.key())) {
      for (Json& one : *member) drop_null_keywords(one);
    } else {
      drop_null_keywords(*member);
    }
  }
}

// ~0 and ~1 of JSON pointers.
void unescape(std::string& token) {
  size_t size = 0;
  for (size_t i = 0; i < token.size(); ++i) {
    const bool escape = token[i] == '~' && i + 1 < token.size();
    token[size++] = !escape ? token[i] : token[++i] == '1' ? '/' : '~';
  }
  token.resize(size);
}

// A reference from a document with this address; enough of RFC 3986 for schemas.
std::string joined(const std::string& base, const std::string& reference) {
  if (reference.find("://") != std::string::npos || reference.starts_with("urn:") || base.empty())
    return reference;
  if (reference.starts_with('/')) {
    const size_t scheme = base.find("://");
    const size_t path = scheme == std::string::npos ? 0 : base.find('/', scheme + 3);
    return base.substr(0, path) + reference;
  }
  return base.substr(0, base.rfind('/') + 1) + reference;
}

// Calls visit(part, by_name) for all members but data. by_name: the members are no keywords but schemas by
// name.
template <typename AnyJson, typename Visit>
void visit_parts(AnyJson& value, bool by_name, const Visit& visit) {
  for (auto member = value.begin(); member != value.end(); ++member) {
    const bool keyword = value.is_object() && !by_name;
    if (!keyword || !is_one_of(kData, member.key()))
      visit(*member, keyword && is_one_of(kMaps, member.key()));
  }
}

// The address that the value's $id gives it; nothing where it has none.
std::optional<std::string> address_of(const Json& value, const std::string& base) {
  std::optional<std::string> address;
  for (const char* key : {"id", "$id"}) {
    const std::string id = text::string_or(value, key, "");
    if (!id.empty() && !id.starts_with('#')) address = joined(base, id.substr(0, id.find('#')));
  }
  return address;
}

}  // namespace

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::parse(std::string_view text,
                                                              const std::string& name) {
  Reader reader;
  const bool whole = text.find('\0') == std::string_view::npos;  // nlohmann's parser ends at one
  if (!whole || !Json::sax_parse(text.begin(), text.end(), &reader))
    return invalid("{}: {}", name, reader.failure.empty() ? json_fault(text) : reader.failure);
  auto document = std::make_unique<SchemaDocument>();
  document->root_ = std::move(reader.root);
  drop_null_keywords(document->root_);
  document->find_names(document->root_, "", false);
  document->rebase(document->root_, "", false, false);
  if (document->names_bytes_ > kMaxNamesBytes)
    return invalid("{}: its $id and $anchor make names of over {} bytes", name, kMaxNamesBytes);
  return document;
}

void SchemaDocument::add_name(const std::string& name, const Json& value) {
  names_.try_emplace(name, &value);
  names_bytes_ += name.size();
}

void SchemaDocument::find_names(const Json& value, const std::string& base, bool by_name) {
  if (!value.is_structured() || names_bytes_ > kMaxNamesBytes) return;
  for (const char* key : {"id", "$id"}) {
    const std::string id = text::string_or(value, key, "");
    if (id.starts_with('#')) add_name(base + id, value);
  }
  const std::optional<std::string> own = address_of(value, base);
  const std::string& here = own ? *own : base;
  if (own) add_name(*own, value);
  for (const char* key : {"$anchor", "$dynamicAnchor"}) {
    const std::string anchor = "#" + text::string_or(value, key, "");
    if (anchor.size() == 1) continue;
    add_name(here + anchor, value);
    add_name(anchor, value);
    if (key[1] == 'd') ++dynamic_anchors_[anchor];
  }
  visit_parts(value, by_name, [&](const Json& part, bool names) { find_names(part, here, names); });
}

void SchemaDocument::rebase(Json& value, const std::string& base, bool by_name, bool below) {
  if (!value.is_structured() || names_bytes_ > kMaxNamesBytes) return;
  const std::optional<std::string> own = address_of(value, base);
  const std::string& here = own ? *own : base;
  below = below || (own && &value != &root_);
  for (const char* key : {"$ref", "$dynamicRef"}) {
    const std::string reference = below ? text::string_or(value, key, "") : "";
    if (reference.empty()) continue;
    const std::string whole = reference.starts_with('#') ? here + reference : joined(here, reference);
    names_bytes_ += whole.size();
    if (resolve(whole).ok()) value[key] = whole;
  }
  visit_parts(value, by_name, [&](Json& part, bool names) { rebase(part, here, names, below); });
}

const Json* SchemaDocument::member(const Json& object, const std::string& key) const {
  if (!object.is_object()) return nullptr;
  if (object.size() < kIndexedFrom) {
    const auto at = object.find(key);
    return at == object.end() ? nullptr : &*at;
  }
  auto& index = indices_[&object];
  if (index.empty())
    for (const auto& [name, value] : *object.get_ptr<const Json::object_t*>()) index.emplace(name, &value);
  const auto at = index.find(key);
  return at == index.end() ? nullptr : at->second;
}

const Json* SchemaDocument::at_pointer(const Json& from, const std::string& pointer) const {
  const Json* at = &from;
  for (size_t begin = 0; begin < pointer.size() && at != nullptr;) {
    const size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    std::string token = pointer.substr(begin + 1, end - begin - 1);
    unescape(token);
    const bool number =
        !token.empty() && token.size() < 9 && token.find_first_not_of("0123456789") == std::string::npos;
    if (at->is_array())
      at = number && std::stoul(token) < at->size() ? &(*at)[std::stoul(token)] : nullptr;
    else
      at = member(*at, token);
    begin = end;
  }
  return at;
}

Result<const Json*> SchemaDocument::resolve(const std::string& reference) const {
  const size_t mark = std::min(reference.find('#'), reference.size());
  const auto dynamic = dynamic_anchors_.find(reference.substr(mark));
  if (dynamic != dynamic_anchors_.end() && dynamic->second > 1)
    return invalid("$dynamicAnchor \"{}\" in several places is not supported", reference.substr(mark));
  // ~0 and ~1 are left to JSON pointers.
  const std::string fragment = mark < reference.size() ? percent_decoded(reference.substr(mark + 1)) : "";
  std::string address = reference.substr(0, mark);
  const Json* from = &root_;
  if (!address.empty()) {
    auto found = names_.find(address);
    if (found == names_.end() && root_.is_object()) {
      const std::string base = text::string_or(root_, "$id", text::string_or(root_, "id", ""));
      found = names_.find(joined(base.substr(0, base.find('#')), address));
    }
    if (found == names_.end())
      return invalid("$ref \"{}\" leaves the schema: only references inside it are supported", reference);
    from = found->second;
    address = found->first;
  }
  const Json* target = fragment.empty() || fragment.starts_with('/') ? at_pointer(*from, fragment) : nullptr;
  if (target == nullptr) {
    const auto found = names_.find(address + "#" + fragment);
    if (found != names_.end()) target = found->second;
  }
  if (target == nullptr) return invalid("$ref \"{}\" points to nothing", reference);
  return target;
}

}  // namespace moesaic::grammar
