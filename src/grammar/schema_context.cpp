#include "grammar/schema_context.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace moesaic::grammar {
namespace {

uint64_t hash_of_both(uint64_t a, uint64_t b) {
  uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
  return h ^ (h >> 31);
}

// Its parts, and its texts by their length.
uint64_t size_of(const Json& value) {
  if (value.is_string()) return 1 + value.get_ref<const std::string&>().size() / SchemaContext::kBytesOfStep;
  uint64_t size = 1;
  if (value.is_structured())
    for (const Json& part : value) size += size_of(part);
  return size;
}

// Numbers, texts, and all others as equals.
bool before(const Json* a, const Json* b) {
  const auto kind = [](const Json& value) { return value.is_number() ? 0 : value.is_string() ? 1 : 2; };
  if (kind(*a) != kind(*b)) return kind(*a) < kind(*b);
  if (a->is_number()) return a->get<double>() < b->get<double>();
  return a->is_string() && a->get_ref<const std::string&>() < b->get_ref<const std::string&>();
}

}  // namespace

// Every structure's hash is computed once. Its members' order counts: properties are written in it.
uint64_t SchemaContext::hash_of(const Json& value) {
  if (!value.is_structured())
    return hash_of_both(static_cast<uint64_t>(value.type()), std::hash<Json>()(value));
  const auto known = hashes_.find(&value);
  if (known != hashes_.end()) return known->second;
  work_.add(1 + value.size() / 4);
  uint64_t h = hash_of_both(static_cast<uint64_t>(value.type()), value.size());
  for (auto member = value.begin(); member != value.end(); ++member) {
    if (value.is_object()) h = hash_of_both(h, std::hash<std::string>()(member.key()));
    h = hash_of_both(h, hash_of(*member));
  }
  return hashes_[&value] = h;
}

const Json* SchemaContext::same(const Json* schema) {
  const auto [entry, fresh] = same_.try_emplace(schema, schema);
  if (!fresh) return entry->second;
  const auto [first, first_of_hash] = by_hash_.try_emplace(hash_of(*schema), schema);
  return entry->second = first_of_hash || *first->second == *schema ? first->second : schema;
}

const Json* SchemaContext::keep(Json schema) {
  work_.add(schema.size() + 1);
  return &kept_.emplace_back(std::move(schema));
}

Json SchemaContext::link(const Json* schema) {
  const auto [entry, fresh] = links_.try_emplace(same(schema), linked_.size());
  if (fresh) linked_.push_back(entry->first);
  return {{kLink, entry->second}};
}

uint64_t SchemaContext::steps_of(const Json& value) {
  if (!value.is_structured()) return size_of(value);
  const auto [entry, fresh] = steps_.try_emplace(&value, 0);
  if (fresh) work_.add(entry->second = size_of(value));
  return entry->second;
}

bool SchemaContext::lists(const Json& list, const Json& value) {
  const auto [entry, fresh] = sorted_.try_emplace(&list);
  auto& sorted = entry->second;
  if (fresh) {
    uint64_t steps = 0;
    for (const Json& one : list) sorted.push_back(&one), steps += one.is_string() ? steps_of(one) : 1;
    work_.add(steps * std::bit_width(list.size()) / 2);
    std::sort(sorted.begin(), sorted.end(), before);
  }
  const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), &value, before);
  const bool by_order = value.is_string() && first != last;
  work_.add(steps_of(value) * (2 * std::bit_width(sorted.size()) + (by_order ? 0 : last - first)));
  return by_order || std::any_of(first, last, [&](const Json* one) { return *one == value; });
}

const Json* SchemaContext::list_of(const Json& value) {
  const auto [entry, fresh] = lists_.try_emplace(&value, nullptr);
  if (fresh) entry->second = keep(Json::array({value}));
  return entry->second;
}

Result<std::vector<const Json*>> SchemaContext::references(const Json& schema) const {
  std::vector<const Json*> targets;
  if (has(schema, "$recursiveRef")) targets.push_back(&document_.root());
  if (has(schema, kLink)) {
    const Json& link = schema[kLink];
    if (!link.is_number_unsigned() || link.get<size_t>() >= linked_.size())
      return invalid("the keyword {} is not supported", Json(kLink).dump());
    targets.push_back(linked_[link.get<size_t>()]);
  }
  for (const char* key : {"$ref", "$dynamicRef"}) {
    if (!has(schema, key)) continue;
    if (!schema[key].is_string()) return invalid("{} must be a string", key);
    const auto& reference = schema[key].get_ref<const std::string&>();
    work_.add(reference.size() / kBytesOfStep);
    ASSIGN_OR_RETURN(targets.emplace_back(), document_.resolve(reference));
  }
  return targets;
}

const std::unordered_set<const Json*>& SchemaContext::reach(const Json* schema) {
  const auto [entry, fresh] = reach_.try_emplace(schema);
  if (!fresh) return entry->second;
  std::vector<const Json*> open = {schema};
  while (!open.empty() && !work_.spent()) {
    const Json* at = same(open.back());
    open.pop_back();
    work_.add(4);
    add_keywords(*at);
    if (!at->is_object() || !entry->second.insert(at).second) continue;
    const auto targets = references(*at);
    if (targets.ok()) open.insert(open.end(), targets.value().begin(), targets.value().end());
    for (const char* key : {"allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"})
      if (has(*at, key))
        for (const Json& member : (*at)[key]) open.push_back(&member);
    for (const char* key : {"if", "then", "else"})
      if (has(*at, key)) open.push_back(&(*at)[key]);
  }
  return entry->second;
}

Result<const Pattern*> SchemaContext::pattern(const std::string& text) {
  work_.add(text.size() / kBytesOfStep);
  auto found = patterns_.find(text);
  if (found == patterns_.end()) found = patterns_.emplace(text, parse_pattern(text, work_)).first;
  if (!found->second.ok()) return found->second.status();
  return &found->second.value();
}

Result<bool> SchemaContext::finds(const std::string& pattern, const std::string& text) {
  ASSIGN_OR_RETURN(const Pattern* parsed, this->pattern(pattern));
  work_.add(text.size() / kBytesOfStep);
  return takes(*parsed, code_points(text), work_);
}

}  // namespace moesaic::grammar
