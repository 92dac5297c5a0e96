// The state that the parts of one schema's compilation share.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/pattern.h"
#include "grammar/schema_document.h"

namespace moesaic::grammar {

// Schemas that must all hold, each once, in the order in which they were found.
using Schemas = std::vector<const Json*>;

// Keywords that only rewriting makes. Documents may use them too: they only narrow.
inline constexpr const char *kLink = "\x01link",  // a number of SchemaContext::linked
    *kAbsent =
        "\x01"
        "absent",  // names of properties that must not be there
        *kDiffers =
            "\x01"
            "differs",                              // values
            *kNotPattern = "\x01notPattern",        // patterns
                *kRewritten = "\x01rewritten",      // says nothing of properties that it does not name
                    *kFractions = "\x01fractions";  // a type: numbers that are no integers

class SchemaContext {
 public:
  static constexpr size_t kBytesOfStep = 16;  // a text that is copied, compared or hashed

  SchemaContext(const SchemaDocument& document, Work& work) : document_(document), work_(work) {}

  const SchemaDocument& document() const { return document_; }
  const Json* member(const Json& object, const std::string& key) const {
    return document_.member(object, key);
  }
  Work& work() { return work_; }
  // Looking for a keyword passes the others, which are few in most schemas.
  void add_keywords(const Json& schema) const {
    if (schema.size() > kFewKeywords) work_.add(4 * schema.size());
  }

  // One address for equal schemas.
  const Json* same(const Json* schema);
  // Keeps a schema that was made here.
  const Json* keep(Json schema);
  // A list of this value alone, made once.
  const Json* list_of(const Json& value);
  // Is the value in the list? Lists stay where they are.
  bool lists(const Json& list, const Json& value);
  // The steps that comparing this value with another one takes. Values stay where they are.
  uint64_t steps_of(const Json& value);
  // A schema that stands for this one, without a copy of it.
  Json link(const Json* schema);
  // The schemas to which a $ref, $dynamicRef or link points; nullptr where the schema has none.
  Result<std::vector<const Json*>> references(const Json& schema) const;

  // Each is parsed once.
  Result<const Pattern*> pattern(const std::string& text);
  Result<bool> finds(const std::string& pattern, const std::string& text);

  // The schemas that speak of the same value, this one included, but none inside `not`: annotations come from
  // them.
  const std::unordered_set<const Json*>& reach(const Json* schema);

  void note(std::string line) { notes_.insert(std::move(line)); }
  const std::set<std::string>& notes() const { return notes_; }

 private:
  static constexpr size_t kFewKeywords = 32;

  uint64_t hash_of(const Json& value);

  const SchemaDocument& document_;
  Work& work_;
  std::deque<Json> kept_;
  std::vector<const Json*> linked_;
  std::unordered_map<const Json*, size_t> links_;  // numbers in linked_
  std::unordered_map<const Json*, const Json*> same_, lists_;
  std::unordered_map<const Json*, std::vector<const Json*>> sorted_;
  std::unordered_map<const Json*, uint64_t> hashes_, steps_;
  std::unordered_map<uint64_t, const Json*> by_hash_;
  std::unordered_map<std::string, Result<Pattern>> patterns_;
  std::unordered_map<const Json*, std::unordered_set<const Json*>> reach_;
  std::set<std::string> notes_;
};

}  // namespace moesaic::grammar
