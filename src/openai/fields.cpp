#include "openai/fields.h"

#include <fmt/format.h>

#include <cmath>

namespace moesaic::openai {
namespace {

bool is_fraction(const Json& value) {
  const double number = text::double_of(value).value_or(0);
  return number != std::trunc(number);
}

}  // namespace

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return {};
  if (value.is_number_integer()) return value.get<int64_t>();
  const std::optional<double> number = text::double_of(value);
  if (!number || is_fraction(value)) return {};
  if (!(*number > -0x1p63 && *number < 0x1p63)) return {};  // numbers below -2^63 read as -2^63
  return static_cast<int64_t>(*number);
}

std::optional<int32_t> token_id(const Json& value, int vocab) {
  const std::optional<int64_t> id = whole_number(value);
  if (!id || *id < 0 || *id >= vocab) return {};
  return static_cast<int32_t>(*id);
}

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
  const std::optional<double> given = text::double_of(*member);
  if (!given) return refuse(key, "must be a number");
  if (!(*given >= least && *given <= most))
    return refuse(key, fmt::format("must be between {} and {}", least, most));
  value = *given;
}

void Fields::integer(const char* key, int64_t& value, int64_t least, int64_t most) {
  const Json* member = find(key);
  if (member == nullptr) return;
  const std::optional<int64_t> given = whole_number(*member);
  if (!given && !text::double_of(*member)) return refuse(key, "must be an integer");
  if (!given && is_fraction(*member)) return refuse(key, "must be an integer");
  if (!given || *given < least || *given > most)
    return refuse(key, fmt::format("must be between {} and {}", least, most));
  value = *given;
}

void Fields::tokens(const char* key, int vocab, std::vector<int32_t>& values, size_t most) {
  const Json* member = find(key);
  if (member == nullptr) return;
  if (!member->is_array()) return refuse(key, "must be an array of token ids");
  if (member->size() > most) return refuse(key, fmt::format("has more than {} token ids", most));
  for (const Json& entry : *member) {
    const std::optional<int32_t> id = token_id(entry, vocab);
    if (!id) return refuse(key, fmt::format("holds something else than token ids below {}", vocab));
    values.push_back(*id);
  }
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
