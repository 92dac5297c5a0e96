#include "grammar/schema_cases.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "grammar/schema_values.h"

namespace moesaic::grammar {
namespace {

constexpr int kMaxDepth = 256;  // references and combinations inside each other
// Cases that are looked at, and work on them.
constexpr size_t kMaxSteps = 20'000, kPlausibleSteps = 100;
constexpr uint64_t kMaxWork = 400'000, kPlausibleWork = 20'000;
constexpr const char* kNotMore = "not excludes more values than it says, where these cannot be told apart";

// Keywords whose meaning does not depend on others' schemas, and those that combine.
const std::unordered_set<std::string_view> kOwn = {"type", "enum", "const", "nullable", kDiffers, kRewritten};
const std::unordered_set<std::string_view> kCombining = {"$ref",
                                                         "$dynamicRef",
                                                         "$recursiveRef",
                                                         kLink,
                                                         "allOf",
                                                         "anyOf",
                                                         "oneOf",
                                                         "not",
                                                         "if",
                                                         "then",
                                                         "else",
                                                         "dependentRequired",
                                                         "dependentSchemas",
                                                         "dependencies",
                                                         "minContains",
                                                         "maxContains"};
const std::unordered_set<std::string_view> kAnnotations = {"$schema",
                                                           "$id",
                                                           "$anchor",
                                                           "$dynamicAnchor",
                                                           "$recursiveAnchor",
                                                           "$comment",
                                                           "$defs",
                                                           "definitions",
                                                           "id",
                                                           "title",
                                                           "description",
                                                           "default",
                                                           "examples",
                                                           "example",
                                                           "deprecated",
                                                           "readOnly",
                                                           "writeOnly",
                                                           "contentEncoding",
                                                           "contentMediaType",
                                                           "contentSchema",
                                                           "discriminator",
                                                           "externalDocs",
                                                           "xml",
                                                           "$vocabulary"};

bool is_own(std::string_view keyword) { return type_of_keyword(keyword) != 0 || kOwn.contains(keyword); }

}  // namespace

// Goes through the choices of a case, depth first.
class SchemaCases::Search {
 public:
  // first: is there any case?
  Search(SchemaCases& cases, const Schemas& schemas, int depth, bool first)
      : cases_(cases),
        schemas_(schemas),
        depth_(depth),
        first_(first),
        left_(first ? kPlausibleSteps : kMaxSteps),
        work_limit_(cases.context_.work().done() + (first ? kPlausibleWork : kMaxWork)) {}

  // Was it given up, for too many steps or for their work?
  bool cut() const { return left_ == 0 || out_of_work(); }
  // Was a case left out, since it is not known what satisfies a `not` of it?
  bool left_out() const { return left_out_; }
  bool out_of_work() const { return cases_.context_.work().done() > work_limit_; }
  // Calls found for each possible case until it returns false.
  template <typename Found>
  Status visit(const Case& c, const Found& found) {
    if (left_ > 0) --left_;
    if (stopped() || c.impossible) return {};
    if (cases_.context_.work().spent()) return invalid("{}", kTooMuchWork);
    if (!cases_.possible(c, depth_)) return {};
    if (c.choices.empty()) {
      done_ = !found(c);
      return {};
    }
    if (const Json* values = decided(c)) {
      if (!first_) cases_.note_all(schemas_);
      Case all;
      all.own = {values};
      done_ = !(*values)["enum"].empty() && !found(all);
      return {};
    }
    // The shortest list first: what it rules out need not be looked at again and again. Those that differ
    // from the schema last: beside values they are not needed.
    const auto size = [](const Choice& a) -> size_t {
      if (a.ways.list == nullptr) return SIZE_MAX;
      return a.ways.list->size() + (a.ways.note != nullptr ? SIZE_MAX / 2 : 0);
    };
    const auto at = std::min_element(c.choices.begin(), c.choices.end(),
                                     [&](const Choice& a, const Choice& b) { return size(a) < size(b); });
    const Choice choice = *at;
    Case rest = c;
    rest.choices.erase(rest.choices.begin() + (at - c.choices.begin()));
    cases_.context_.work().add(rest.seen.size() + rest.choices.size());
    // A choice of which all or a part is unknown is passed over: there may be a case in the rest.
    if (first_ && (choice.ways.list == nullptr || choice.ways.note == kNotMore)) return visit(rest, found);
    if (choice.ways.list == nullptr) return left_out_ = true, Status();
    if (choice.ways.note != nullptr) rest.notes.insert(choice.ways.note);
    for (const Json& member : *choice.ways.list) {
      if (stopped()) return {};
      Case next = rest;
      cases_.context_.work().add(4 * (rest.seen.size() + rest.own.size()) + 16);
      RETURN_IF_ERROR(cases_.add(&member, choice.from, next));
      RETURN_IF_ERROR(visit(next, found));
    }
    return {};
  }

 private:
  bool stopped() const { return done_ || cut(); }
  // An enum of the case's values that satisfy all schemas, or of the first one; nullptr where the case has no
  // enum, or a value cannot be decided. Its work counts against the schema's limit only, not against the
  // search's.
  const Json* decided(const Case& c) {
    SchemaContext& context = cases_.context_;
    const uint64_t before = context.work().done();
    const Json* values = cases_.values_of(c);
    if (values == nullptr || undecided_.contains(values)) return nullptr;
    Json taken = Json::array();
    Truth holds = Truth::kNo;
    for (size_t v = 0; v < values->size() && holds != Truth::kUnknown && !(first_ && !taken.empty()); ++v) {
      const Json& value = (*values)[v];
      holds = Truth::kYes;
      for (size_t i = 0; i < schemas_.size() && holds == Truth::kYes; ++i)
        holds = satisfies(value, *schemas_[i], context);
      if (context.work().spent()) holds = Truth::kUnknown;
      if (holds != Truth::kYes) continue;
      context.work().add(context.steps_of(value));
      taken.push_back(value);
    }
    work_limit_ += context.work().done() - before;
    if (holds == Truth::kUnknown) return undecided_.insert(values), nullptr;
    return context.same(context.keep({{"enum", std::move(taken)}}));
  }

  SchemaCases& cases_;
  const Schemas& schemas_;
  int depth_;
  bool first_;
  size_t left_;
  uint64_t work_limit_;
  std::set<const Json*> undecided_;
  bool done_ = false, left_out_ = false;
};

Status SchemaCases::check_keywords(const Json& schema) {
  if (checked_.contains(&schema)) return {};
  note_unknown(schema);
  for (const char* keyword : {"allOf", "anyOf", "oneOf"})
    if (has(schema, keyword) && !schema[keyword].is_array()) return invalid("{} must be a list", keyword);
  checked_.insert(&schema);
  return {};
}

void SchemaCases::note_unknown(const Json& schema) {
  for (const auto& [keyword, unused] : *schema.get_ptr<const Json::object_t*>()) {
    context_.work().add(1);
    if (!is_own(keyword) && !kCombining.contains(keyword) && !kAnnotations.contains(keyword))
      context_.note("the unknown keyword " + keyword + " is ignored");
  }
}

void SchemaCases::note_all(const Schemas& schemas) {
  for (const Json* schema : schemas) {
    if (!noted_.insert(schema).second) continue;
    for (const Json* part : context_.reach(schema)) {
      if (context_.work().spent()) return;
      note_unknown(*part);
      if (!has(*part, "format") || !(*part)["format"].is_string()) continue;
      const auto& format = (*part)["format"].get_ref<const std::string&>();
      if (pattern_of_format(format).empty()) context_.note(ignored_format(format));
    }
  }
}

bool SchemaCases::inside_itself(const Json* schema, int from) const {
  for (; from >= 0; from = steps_[from].from)
    if (steps_[from].schema == schema) return true;
  return false;
}

Status SchemaCases::add(const Json* schema, int from, Case& c) {
  context_.work().add(2);
  schema = context_.same(schema);
  if (schema->is_boolean()) return c.impossible = c.impossible || *schema == false, Status();
  if (!schema->is_object()) return invalid("a schema must be an object, true or false");
  // A schema that holds only if it holds, never does.
  if (inside_itself(schema, from)) return c.impossible = true, Status();
  if (!c.seen.insert(schema).second) return {};
  int depth = 0;
  for (int at = from; at >= 0; at = steps_[at].from) ++depth;
  context_.work().add(depth);
  if (depth > kMaxDepth) return invalid("$ref and allOf are {} deep inside each other", kMaxDepth);
  context_.add_keywords(*schema);
  if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  steps_.push_back({schema, from});
  RETURN_IF_ERROR(check_keywords(*schema));
  const auto& members = *schema->get_ptr<const Json::object_t*>();
  const bool own =
      std::any_of(members.begin(), members.end(), [](const auto& member) { return is_own(member.first); });
  if (own) c.own.push_back(schema);
  return add_parts(*schema, static_cast<int>(steps_.size()) - 1, c);
}

void SchemaCases::choose(const Ways& ways, int step, Case& c) {
  const Json* list = ways.list == nullptr ? nullptr : context_.same(ways.list);
  context_.work().add(c.choices.size() / 8);
  const bool known = std::any_of(c.choices.begin(), c.choices.end(), [&](const Choice& o) {
    return o.ways.list == list && o.ways.note == ways.note;
  });
  if (!known) c.choices.push_back({{list, ways.note}, step});
}

Status SchemaCases::add_parts(const Json& schema, int step, Case& c) {
  if (has(schema, "oneOf")) choose(one_of(schema["oneOf"]), step, c);
  ASSIGN_OR_RETURN(const auto targets, context_.references(schema));
  for (const Json* target : targets) RETURN_IF_ERROR(add(target, step, c));
  if (has(schema, "allOf"))
    for (const Json& member : schema["allOf"]) RETURN_IF_ERROR(add(&member, step, c));
  if (has(schema, "anyOf")) choose({&schema["anyOf"]}, step, c);
  if (const Json* named = discriminating(schema)) RETURN_IF_ERROR(add(named, step, c));
  if (has(schema, "if") && (has(schema, "then") || has(schema, "else")))
    choose(if_then_else(schema), step, c);
  if (has(schema, "not")) {
    const Json* list = negation(&schema["not"]);
    choose({list, is_partly_negated(&schema["not"]) ? kNotMore : nullptr}, step, c);
  }
  return add_dependents(schema, step, c);
}

Status SchemaCases::add_dependents(const Json& schema, int step, Case& c) {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    if (!has(schema, keyword)) continue;
    const Json& needs = schema[keyword];
    if (!needs.is_object()) return invalid("{} must be an object", keyword);
    for (const auto& [name, unused] : *needs.get_ptr<const Json::object_t*>()) {
      ASSIGN_OR_RETURN(const Json* list, dependent(needs, name));
      if (list != nullptr) choose({list}, step, c);
    }
  }
  return {};
}

bool SchemaCases::possible_value(const Facts& facts, const Schemas& schemas) {
  const Json& values = **std::min_element(facts.enums.begin(), facts.enums.end(),
                                          [](auto* a, auto* b) { return a->size() < b->size(); });
  return std::any_of(values.begin(), values.end(), [&](const Json& value) {
    return std::all_of(schemas.begin(), schemas.end(), [&](const Json* schema) {
      return own_keywords_hold(value, *schema, context_, &values) != Truth::kNo;
    });
  });
}

const Json* SchemaCases::values_of(const Case& c) {
  const Json* values = nullptr;
  for (const Json* own : c.own) {
    context_.work().add(1);
    context_.add_keywords(*own);
    const bool list = has(*own, "enum") && (*own)["enum"].is_array();
    const Json* here = has(*own, "const") ? context_.list_of((*own)["const"])
                       : list             ? &(*own)["enum"]
                                          : nullptr;
    if (here != nullptr && (values == nullptr || here->size() < values->size())) values = here;
  }
  return values;
}

bool SchemaCases::possible_object(const Facts& facts, int depth) {
  if (facts.members.empty()) return false;
  for (const std::string& name : facts.required) {
    context_.work().add(facts.absent.size());
    if (context_.work().spent()) return true;
    if (std::find(facts.absent.begin(), facts.absent.end(), name) != facts.absent.end()) return false;
    const auto property = schemas_of_property(facts, name, context_);
    if (property.ok() && !plausible(property.value(), depth - 1)) return false;
  }
  return true;
}

bool SchemaCases::possible(const Case& c, int depth) {
  const auto found = facts_of(c.own, context_);
  if (!found.ok()) return true;  // said when it is compiled
  const Facts& facts = found.value();
  unsigned types = any_type_ && !facts.typed ? unsigned{kAllTypes} : facts.types;
  if (types == 0) return false;
  if (!facts.enums.empty()) return possible_value(facts, c.own);
  if (types == kObject) return possible_object(facts, depth);
  if (facts.length.empty()) types &= ~kString;
  if (facts.items.empty()) types &= ~kArray;
  if (empty(facts.range)) types &= ~kNumber;
  return types != 0;
}

bool SchemaCases::plausible(const Schemas& schemas, int depth) {
  if (depth <= 0 || context_.work().spent()) return true;
  Schemas key;
  for (const Json* schema : schemas) key.push_back(context_.same(schema));
  context_.work().add(key.size() + 4);
  const auto [entry, fresh] = plausible_.try_emplace({std::move(key), any_type_ ? -depth : depth}, true);
  if (!fresh) return entry->second;
  return entry->second = has_case(schemas, depth);
}

bool SchemaCases::has_case(const Schemas& schemas, int depth) {
  const size_t steps = steps_.size();
  Case all;
  bool found = false;
  Status status;
  for (const Json* schema : schemas)
    if (status.ok()) status = add(schema, -1, all);
  if (status.ok()) {
    Search search(*this, schemas, depth, true);
    status = search.visit(all, [&](const Case& /*c*/) { return found = true, false; });
    found = found || search.cut();
  }
  steps_.resize(steps);
  return found || !status.ok();
}

Result<std::vector<Schemas>> SchemaCases::all_cases(const Schemas& schemas) {
  steps_.clear();
  Case all;
  for (const Json* schema : schemas) RETURN_IF_ERROR(add(schema, -1, all));
  std::vector<Schemas> cases;
  std::set<Schemas> known;
  if (all.choices.empty()) return all.impossible ? cases : std::vector<Schemas>{all.own};
  Search search(*this, schemas, 3, false);
  RETURN_IF_ERROR(search.visit(all, [&](const Case& c) {
    for (const char* note : c.notes) context_.note(note);
    if (known.insert(c.own).second) cases.push_back(c.own);
    return cases.size() <= kMaxCases;
  }));
  // A schema that itself has such a `not` is refused, even where some of its values could be decided.
  const bool always = std::any_of(all.choices.begin(), all.choices.end(),
                                  [](const Choice& choice) { return choice.ways.list == nullptr; });
  if (search.left_out() && (cases.empty() || always)) return invalid("not: such a schema cannot be excluded");
  if (search.left_out()) context_.note(kNotMore);
  if (cases.size() <= kMaxCases && search.out_of_work()) return invalid("{}", kTooMuchWork);
  if (cases.size() > kMaxCases || search.cut())
    return invalid("anyOf, oneOf, not and if multiply to over {} alternatives", kMaxCases);
  return cases;
}

Result<std::vector<Schemas>> SchemaCases::of(const Schemas& schemas) {
  auto cases = all_cases(schemas);
  if (cases.ok() || loose_ || (exact_made_.one_ofs.empty() && exact_made_.negations.empty())) return cases;
  loose_ = true;
  auto loose_cases = all_cases(schemas);
  loose_ = false;
  return loose_cases.ok() && !loose_cases.value().empty() ? std::move(loose_cases) : std::move(cases);
}

}  // namespace moesaic::grammar
