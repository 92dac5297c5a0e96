// One schema on its way to an automaton; json_schema.h is its interface.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/char_dfa.h"
#include "grammar/json_rules.h"
#include "grammar/schema_cases.h"
#include "grammar/schema_facts.h"

namespace moesaic::grammar {

class SchemaCompiler {
 public:
  SchemaCompiler(Automaton& a, JsonRules& rules, const SchemaDocument& document, const std::string& name,
                 Work& work)
      : a_(a), rules_(rules), context_(document, work), cases_(context_), strings_(a), name_(name) {}

  Result<StateId> compile();
  const std::set<std::string>& notes() const { return context_.notes(); }

 private:
  struct Open {
    StateId forward;
    Schemas schemas;
    std::string path;
  };
  struct Property {
    std::string name;
    StateId value;
    bool required;
  };
  class Record;

  Status in_place(const Status& status) const;
  // A rule for what all of these take, made later; the same schemas have the same rule.
  StateId inner(const Schemas& schemas, const std::string& part);
  Result<StateId> made(const Schemas& schemas);
  Result<StateId> of_case(const Schemas& own);
  Result<StateId> of_types(Facts& facts);
  Result<StateId> values(const Facts& facts, const Schemas& own);
  StateId listed(const std::vector<const Json*>& values);
  void exclude(Facts& facts) const;

  Result<StateId> string(const Facts& facts);
  Result<StateId> patterned(const Facts& facts);
  bool add_parts(const Pattern& pattern, std::vector<const CharAutomaton*>& with,
                 std::vector<const CharAutomaton*>& without) const;
  Result<StateId> number(const Facts& facts);

  Result<StateId> array(const Facts& facts);
  Schemas item(const Facts& facts, size_t at);
  Status add_contained(const Facts& facts, Counts& counts, std::vector<Schemas>& first, Schemas& rest);
  // The values of a list without duplicates; nullptr where they are not few.
  Result<std::vector<const Json*>> few_values(const Schemas& item);
  StateId unique_list(const std::vector<const Json*>& values, Counts counts);
  StateId unique_from(const std::vector<StateId>& values, uint32_t used, Counts counts,
                      std::map<uint32_t, StateId>& made);

  Result<StateId> object(const Facts& facts);
  Result<std::vector<std::string>> names_of(const Facts& facts);
  Result<bool> name_allowed(const Facts& facts, const std::string& name);
  Result<std::vector<Property>> properties(const Facts& facts, bool& impossible,
                                           std::vector<std::string>& named);
  Result<StateId> other_member(const Facts& facts, const std::vector<std::string>& named);
  Result<StateId> matching_member(const Facts& facts, const Facts& name,
                                  const std::vector<std::string>& named,
                                  const std::vector<std::string>& patterns);

  Automaton& a_;
  JsonRules& rules_;
  SchemaContext context_;
  SchemaCases cases_;
  StringMaker strings_;
  const std::string& name_;
  std::string path_;
  std::map<std::vector<const Json*>, StateId> rules_by_schemas_, rules_by_case_;
  std::unordered_map<std::string, StateId> string_rules_;
  std::vector<Open> open_;
};

}  // namespace moesaic::grammar
