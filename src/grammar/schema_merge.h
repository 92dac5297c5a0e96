// JSON schemas without $ref, allOf and oneOf: what those say, merged into one object of keywords.
#pragma once

#include <set>
#include <string>

#include "moesaic/status.h"
#include "text/limited_json.h"

namespace moesaic::grammar {

using Json = text::OrderedJson;

class SchemaMerger {
 public:
  static constexpr size_t kMaxAlternatives = 1000, kMaxWork = 16 << 20;

  // root must outlive the merger.
  explicit SchemaMerger(const Json& root) : root_(root) {}

  // The keywords that say what `schema` takes: type, properties and so on, and at most one anyOf whose
  // members are schemas. const becomes enum; a schema that takes nothing becomes {"enum": []}. Fails on
  // keywords that are known and not supported, and when all that was flattened so far exceeds kMaxWork bytes
  // of text: few references can multiply to very many schemas.
  Result<Json> flatten(const Json& schema) { return flatten(schema, 0); }
  // Of a reference inside this document.
  Result<const Json*> resolve(const std::string& reference) const;
  // What is not enforced, a line each.
  const std::set<std::string>& notes() const { return notes_; }
  void note(std::string line) { notes_.insert(std::move(line)); }

 private:
  Result<Json> flatten(const Json& schema, int depth);
  Result<Json> own_keywords(const Json& schema);

  const Json& root_;
  size_t work_ = 0;
  std::set<std::string> notes_;
};

// What both take. Both are flat; the result's sub-schemas may use allOf again.
Result<Json> merge(const Json& a, const Json& b);

}  // namespace moesaic::grammar
