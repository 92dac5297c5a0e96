// Reads the members of a request's JSON object. The first error is kept as the refusal and names the field;
// reads after it have no effect.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "openai/api_error.h"
#include "text/limited_json.h"

namespace moesaic::openai {

using Json = text::OrderedJson;

// A number without a fraction, also where it is written as 20.0 or 2e1; nothing for anything else.
std::optional<int64_t> whole_number(const Json& value);
// The same, where it is a token id below vocab.
std::optional<int32_t> token_id(const Json& value, int vocab);

class Fields {
 public:
  // object must be a JSON object and outlive this.
  explicit Fields(const Json& object) : object_(&object) {}

  // The member, unless it is absent or null.
  const Json* find(const char* key) const;

  // Each leaves its target alone where the member is absent or null. Ranges are inclusive.
  void read(const char* key, bool& value);
  void read(const char* key, std::string& value);
  void number(const char* key, double& value, double least, double most);
  void integer(const char* key, int64_t& value, int64_t least, int64_t most);
  void integer(const char* key, int& value, int least, int most);
  // An array of token ids below vocab.
  void tokens(const char* key, int vocab, std::vector<int32_t>& values, size_t most);
  // A string or an array of strings.
  void strings(const char* key, std::vector<std::string>& values, size_t most);

  // Reads an object's member by a function of its own Fields; what does not fit is refused under the object's
  // name.
  template <typename Read>
  void inside(const char* key, const Read& read) {
    const Json* object = find(key);
    if (object == nullptr) return;
    if (!object->is_object()) return refuse(key, "must be an object");
    Fields inner(*object);
    read(inner);
    if (!inner.ok()) refuse(key, inner.refusal()->message);
  }

  void refuse(std::string_view key, const std::string& message);
  void refuse(ApiError error);

  bool ok() const { return !refusal_; }
  const Refusal& refusal() const { return refusal_; }

 private:
  const Json* object_;
  Refusal refusal_;
};

}  // namespace moesaic::openai
