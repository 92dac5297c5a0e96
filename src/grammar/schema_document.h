// A schema's JSON and what its references name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "grammar/work.h"
#include "moesaic/status.h"
#include "text/limited_json.h"

namespace moesaic::grammar {

using Json = text::OrderedJson;

inline bool has(const Json& schema, const char* key) { return schema.is_object() && schema.contains(key); }

class SchemaDocument {
 public:
  static constexpr size_t kMaxMembers = 20'000;  // members of one object

  static constexpr size_t kMaxNamesBytes = 16
                                           << 20;  // names from $id and $anchor, each with the $id above it

  // In linear time, unlike nlohmann's parser, which looks for each member among those before it. Keywords
  // that are null are left out.
  static Result<std::unique_ptr<SchemaDocument>> parse(std::string_view text, const std::string& name);

  const Json& root() const { return root_; }
  // An object's member, or nullptr. Large objects get an index.
  const Json* member(const Json& object, const std::string& key) const;
  // The schema to which $ref "#", "#/pointer", "#anchor" or an $id of this document, with such a fragment,
  // points.
  Result<const Json*> resolve(const std::string& reference) const;

 private:
  void add_name(const std::string& name, const Json& value);
  // by_name: the value's members are schemas by name.
  void find_names(const Json& value, const std::string& base, bool by_name);
  // References that lead somewhere from the $id above them (below: there is one under the root's) get its
  // address. All others go from the root.
  void rebase(Json& value, const std::string& base, bool by_name, bool below);
  const Json* at_pointer(const Json& from, const std::string& pointer) const;

  Json root_;
  std::unordered_map<std::string, const Json*> names_;  // $id, and $id#anchor
  size_t names_bytes_ = 0;
  std::unordered_map<std::string, int> dynamic_anchors_;  // how often each is there
  mutable std::unordered_map<const Json*, std::unordered_map<std::string_view, const Json*>> indices_;
};

}  // namespace moesaic::grammar
