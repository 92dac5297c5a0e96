// Every request field that OpenAI, vLLM or llama.cpp knows, and how it is treated here. Requests are checked
// against these tables; the lists of docs/user/server.md must equal them (fields_test.cc).
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "openai/fields.h"

namespace moesaic::openai {

enum class Treatment {
  kRead,     // has its effect
  kIgnored,  // cannot change what is answered
  kRefused   // would change it and is not supported: 400, except for the values in `accepted`
};

struct FieldTable;

struct KnownField {
  std::string_view name;
  Treatment treatment = Treatment::kRead;
  // Values that ask for nothing, as a JSON array: of a refused field, and of one that is read where another
  // API gets it.
  std::string_view accepted = {};
  std::string_view note = {};           // kRefused: what to do instead
  const FieldTable* members = nullptr;  // an object's, or those of each object in an array
};

// n fields without effect, by their names with a space between.
template <size_t n>
consteval std::array<KnownField, n> ignored(std::string_view names) {
  std::array<KnownField, n> fields;
  for (KnownField& field : fields) {
    const size_t end = std::min(names.find(' '), names.size());
    if (end == 0) std::abort();  // a name is missing
    field = {names.substr(0, end), Treatment::kIgnored};
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  if (!names.empty()) std::abort();  // there are more names
  return fields;
}

struct FieldPart {
  std::string_view title;  // in docs/user/server.md; empty: no part, or other APIs' fields
  std::span<const KnownField> fields;
};

// The fields of one object; of two with one name the first counts.
struct FieldTable {
  std::array<FieldPart, 5> parts;
  // Objects of an array that have another type are not looked at.
  std::string_view type = "function";

  const KnownField* find(std::string_view name) const;
  // The known name that looks most like it; empty where none does.
  std::string_view nearest(std::string_view name) const;
};

// Fields of the other APIs that are served here and would change an answer: where an API has none of that
// name they are refused, so that no request is answered as if it had not said it. To stand last in a table.
const FieldPart& fields_elsewhere();

const FieldTable& chat_fields();
const FieldTable& completion_fields();
const FieldTable& responses_fields();
const FieldTable& tokenize_fields();  // and apply-template
const FieldTable& detokenize_fields();
const FieldTable& tool_fields();  // members of each of `tools`
// All of them with the tables of their members, each once.
std::vector<const FieldTable*> all_field_tables();

// Fields that no table knows: a client's private ones, and misspelt ones.
struct UnknownFields {
  static constexpr size_t kNamed = 8;
  struct One {
    std::string path;     // "response_format.shcema"; bytes that a header cannot hold are '?'
    std::string nearest;  // known name; may be empty
  };
  std::vector<One> named;  // the first ones
  size_t more = 0;         // beside those

  bool empty() const { return named.empty(); }
  // For X-Moesaic-Ignored-Fields: `temprature;nearest="temperature", my_field`.
  std::string header() const;
};

// Refuses unsupported fields and returns the unknown ones. strict: refuses the first unknown one too.
UnknownFields check_fields(const Json& root, const FieldTable& table, bool strict, Fields& fields);

}  // namespace moesaic::openai
