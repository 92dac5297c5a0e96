// Combinations of schemas as cases: references followed, allOf joined, and anyOf, oneOf, not, if and
// dependent... taken apart, until each case is a list of schemas whose own keywords must all hold.
#pragma once

#include <array>
#include <map>
#include <set>
#include <vector>

#include "grammar/schema_context.h"
#include "grammar/schema_facts.h"

namespace moesaic::grammar {

class SchemaCases {
 public:
  static constexpr size_t kMaxCases = 1000;

  explicit SchemaCases(SchemaContext& context) : context_(context) {}

  // A value satisfies all of these schemas exactly where it satisfies one of the cases. Cases that are seen
  // to be impossible are left out.
  Result<std::vector<Schemas>> of(const Schemas& schemas);
  // False only where no value satisfies all of them.
  bool plausible(const Schemas& schemas, int depth);

 private:
  struct Step {
    const Json* schema;
    int from;  // the step that led here, or -1
  };
  // An array of schemas, one of which must hold; nullptr where none is known.
  struct Ways {
    const Json* list = nullptr;
    const char* note = nullptr;  // says what differs from the schema, where something does
  };
  struct Choice {
    Ways ways;
    int from;
  };
  struct Case {
    Schemas own;
    std::vector<Choice> choices;
    std::set<const Json*> seen;
    std::set<const char*> notes;
    bool impossible = false;
  };
  class Search;

  Result<std::vector<Schemas>> all_cases(const Schemas& schemas);
  Status add(const Json* schema, int from, Case& c);
  Status add_parts(const Json& schema, int step, Case& c);
  Status add_dependents(const Json& schema, int step, Case& c);
  void choose(const Ways& ways, int step, Case& c);
  bool inside_itself(const Json* schema, int from) const;
  Status check_keywords(const Json& schema);
  // Notes the keywords and formats that are ignored in all that speaks of the same value.
  void note_all(const Schemas& schemas);
  void note_unknown(const Json& schema);
  bool has_case(const Schemas& schemas, int depth);
  // By what its own keywords say.
  bool possible(const Case& c, int depth);
  bool possible_object(const Facts& facts, int depth);
  bool possible_value(const Facts& facts, const Schemas& schemas);
  // The values of its shortest enum; nullptr where it has none.
  const Json* values_of(const Case& c);

  // Made from other keywords.
  Ways one_of(const Json& members);
  const Json* schema_of_types(unsigned types);
  // True if no value of `types` satisfies both. A value of a type that the keywords of neither speak of
  // satisfies both, so such types are taken out of `types` first, where that may tell the two apart.
  bool told_apart(const Json* one, const Json* other, unsigned& types);
  Json only(const Json& members, size_t which, bool& enforced);
  Ways if_then_else(const Json& schema);
  // Requires the property of a discriminator, by which readers find the member, even where it has a
  // default; nullptr where not all members have it.
  const Json* discriminating(const Json& schema);
  Result<const Json*> dependent(const Json& needs, const std::string& name);
  // A schema of the values that do not satisfy this one, or of some of them; nullptr where none is known.
  const Json* negation(const Json* schema);
  Json negations_of(const Json& schema);
  void negate_keyword(const std::string& keyword, const Json& value, const Json& schema, Json& ways);
  void negate_combination(const std::string& keyword, const Json& value, const Json& schema, Json& ways);
  void negate_object(const std::string& keyword, const Json& value, const Json& schema, Json& ways);
  // {"not": schema} where there is such a part.
  std::optional<Json> negated(const Json* schema);
  // negation() gives a part, or none, of what does not satisfy it.
  bool is_partly_negated(const Json* schema);
  // Schemas of the values that satisfy `one` and not this one; nullptr where not all of them are known.
  const Json* negated_beside(const Json* one, const Json* schema);

  // Each of the runs of of() has its own: in the loose one less is known.
  struct Made {
    std::map<const Json*, Ways> one_ofs, ifs;
    std::map<const Json*, const Json*> negations;
    std::set<const Json*> negating, partly_negated;
    // Closed objects of whose negation only other names, and the negation of these of their properties in
    // part, are missing.
    std::map<const Json*, std::set<std::string>> closed;
  };
  Made& made() { return loose_ ? loose_made_ : exact_made_; }

  SchemaContext& context_;
  std::vector<Step> steps_;
  Made exact_made_, loose_made_;
  std::map<std::pair<const Json*, std::string>, const Json*> dependents_;
  std::map<std::pair<Schemas, int>, bool> plausible_;
  std::set<const Json*> checked_, noted_;
  std::array<const Json*, kAllTypes + 1> typed_ = {};
  bool partial_ = false;   // holds for the negation in progress
  bool any_type_ = false;  // plausible() infers no types from other keywords
  bool loose_ = false;     // oneOf as anyOf, and of what it excludes only what satisfies no member
};

}  // namespace moesaic::grammar
