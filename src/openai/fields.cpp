#include "openai/fields.h"

#include <fmt/format.h>

namespace moesaic::openai {

const Json* Fields::find(const char* key) const {
  const auto at = object_->find(key);
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

void Fields::refuse(std::string_view key, const std::string& message) {
  refuse(ApiError{.http = 400, .message = fmt::format("{}: {}", key, message), .param = std::string(key)});
}

void Fields::refuse(ApiError error) {
  if (!refusal_) refusal_ = std::move(error);
}

void Fields::unsupported(const char* key, const char* instead) {
  if (find(key) != nullptr) refuse(key, fmt::format("not supported; {}", instead));
}

void Fields::read(const char* key, bool& value) {
  const Json* member = find(key);
  if (member == nullptr) return;
  if (!member->is_boolean()) return refuse(key, "must be true or false");
  value = member->get<bool>();
}

void Fields::read(const char* key, std::string& value) {
  const Json* member = find(key);
  if (member == nullptr) return;
  if (!member->is_string()) return refuse(key, "must be a string");
  value = member->get<std::string>();
}

void Fields::number(const char* key, double& value, double least, double most) {
  const Json* member = find(key);
  if (member == nullptr) return;
  if (!member->is_number()) return refuse(key, "must be a number");
  const auto given = member->get<double>();
  if (!(given >= least && given <= most))
    return refuse(key, fmt::format("must be between {} and {}", least, most));
  value = given;
}

void Fields::integer(const char* key, int64_t& value, int64_t least, int64_t most) {
  const Json* member = find(key);
  if (member == nullptr) return;
  if (!member->is_number_integer()) return refuse(key, "must be an integer");
  const bool too_large = member->is_number_unsigned() && member->get<uint64_t>() > INT64_MAX;
  if (too_large || member->get<int64_t>() < least || member->get<int64_t>() > most)
    return refuse(key, fmt::format("must be between {} and {}", least, most));
  value = member->get<int64_t>();
}

void Fields::integer(const char* key, int& value, int least, int most) {
  int64_t wide = value;
  integer(key, wide, least, most);
  value = static_cast<int>(wide);
}

void Fields::strings(const char* key, std::vector<std::string>& values, size_t most) {
  const Json* member = find(key);
  if (member == nullptr) return;
  if (member->is_string()) return values.assign(1, member->get<std::string>());
  if (!member->is_array()) return refuse(key, "must be a string or an array of strings");
  if (member->size() > most) return refuse(key, fmt::format("has more than {} strings", most));
  for (const Json& entry : *member) {
    if (!entry.is_string()) return refuse(key, "must be a string or an array of strings");
    values.push_back(entry.get<std::string>());
  }
}

}  // namespace moesaic::openai
