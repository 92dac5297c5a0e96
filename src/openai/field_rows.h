// For tests: the rows that a field table has in the documentation.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <set>
#include <string>

#include "openai/known_fields.h"
#include "openai/sse.h"

namespace moesaic::openai {

// "| part | read | `a`, `b` |"; a refused field's accepted values stand behind it. Empty: no such fields.
inline std::string documented_row(const FieldPart& part, Treatment treatment, const char* name) {
  std::string list;
  for (const KnownField& field : part.fields) {
    if (field.treatment != treatment) continue;
    list += fmt::format("{}`{}`", list.empty() ? "" : ", ", field.name);
    std::string values;
    const bool shown = treatment == Treatment::kRefused && !field.accepted.empty();
    for (const Json& value : shown ? Json::parse(field.accepted) : Json::array())
      values += fmt::format("{}`{}`", values.empty() ? "" : ", ", dump(value));
    if (!values.empty()) list += " (" + values + ")";
  }
  return list.empty() ? "" : fmt::format("| {} | {} | {} |", part.title, name, list);
}

// All rows of a table and of the tables of its members.
inline void add_documented_rows(const FieldTable& table, std::set<std::string>& rows) {
  for (const FieldPart& part : table.parts) {
    if (part.title.empty()) continue;
    rows.insert(documented_row(part, Treatment::kRead, "read"));
    rows.insert(documented_row(part, Treatment::kIgnored, "ignored"));
    rows.insert(documented_row(part, Treatment::kRefused, "refused"));
    for (const KnownField& field : part.fields)
      if (field.members != nullptr) add_documented_rows(*field.members, rows);
  }
  rows.erase("");
}

// Those of the rows that a page lacks.
inline std::set<std::string> missing_rows(std::set<std::string> rows, const std::string& page) {
  std::ifstream file(page);
  for (std::string line; std::getline(file, line);) rows.erase(line);
  return rows;
}

}  // namespace moesaic::openai
