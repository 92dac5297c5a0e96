#include "openai/known_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/nearest.h"
#include "openai/sse.h"

namespace moesaic::openai {
namespace {

constexpr size_t kMostName = 48;    // bytes of an unknown name that are looked at
constexpr size_t kMostItems = 512;  // objects of an array whose members are looked at

// "Max-Tokens" and "max_tokens" are the same word.
std::string squashed(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, kMostName)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string header_safe(std::string_view name) {
  std::string out(name.substr(0, kMostName));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x7F || (std::isalnum(byte) == 0 && c != '_' && c != '-' && c != '.')) c = '?';
  }
  return out;
}

bool is_accepted(const Json& value, const KnownField& field) {
  if (field.accepted.empty()) return false;
  const Json accepted = Json::parse(field.accepted);
  const std::optional<double> number = text::double_of(value);
  return std::any_of(accepted.begin(), accepted.end(), [&](const Json& one) {
    return one == value || (number && text::double_of(one) == number);
  });
}

std::string refusal_of(const KnownField& field) {
  std::string values;
  for (const Json& value : field.accepted.empty() ? Json::array() : Json::parse(field.accepted))
    values += (values.empty() ? "" : ", ") + dump(value);
  return fmt::format("not supported{}; {}", values.empty() ? "" : " except for " + values, field.note);
}

class Check {
 public:
  Check(bool strict, Fields& fields) : strict_(strict), fields_(fields) {}

  void object(const Json& value, const FieldTable& table, const std::string& path) {
    for (const auto& [name, member] : value.items()) {
      if (member.is_null()) continue;
      const KnownField* known = table.find(name);
      if (known == nullptr) {
        unknown(name, table, path);
      } else if (known->treatment == Treatment::kRefused && !is_accepted(member, *known)) {
        fields_.refuse({.http = 400,
                        .message = fmt::format("{}{}: {}", path, name, refusal_of(*known)),
                        .param = root_of(path + name)});
      } else if (known->members != nullptr) {
        members(member, *known->members, path + name + ".");
      }
    }
  }
  UnknownFields take() { return std::move(unknown_); }

 private:
  static std::string root_of(const std::string& path) { return path.substr(0, path.find('.')); }

  // The arrays are of tools, of which only the client's own have members that count.
  void members(const Json& value, const FieldTable& table, const std::string& path) {
    if (value.is_object()) object(value, table, path);
    if (!value.is_array()) return;
    for (size_t i = 0; i < std::min(value.size(), kMostItems); ++i) {
      const std::string type(table.type);
      if (value[i].is_object() && text::string_or(value[i], "type", type) == type)
        object(value[i], table, path);
    }
  }

  void unknown(const std::string& name, const FieldTable& table, const std::string& path) {
    if (unknown_.named.size() == UnknownFields::kNamed) {
      ++unknown_.more;
      return;
    }
    const std::string shown = path + header_safe(name);
    if (std::any_of(unknown_.named.begin(), unknown_.named.end(),
                    [&](const UnknownFields::One& one) { return one.path == shown; }))
      return;
    const std::string nearest(table.nearest(name));
    unknown_.named.push_back({shown, nearest});
    if (!strict_) return;
    const std::string hint = nearest.empty() ? "" : fmt::format("; the nearest known one is '{}'", nearest);
    fields_.refuse({.http = 400,
                    .message = fmt::format("{}: no such field is known here{}", shown, hint),
                    .param = path.empty() ? shown : root_of(path),
                    .code = "unknown_parameter"});
  }

  bool strict_;
  Fields& fields_;
  UnknownFields unknown_;
};

}  // namespace

const KnownField* FieldTable::find(std::string_view name) const {
  for (const auto& part : parts) {
    const auto at = std::find_if(part.fields.begin(), part.fields.end(),
                                 [&](const KnownField& f) { return f.name == name; });
    if (at != part.fields.end()) return &*at;
  }
  return nullptr;
}

std::string_view FieldTable::nearest(std::string_view name) const {
  const std::string word = squashed(name);
  size_t least = word.size() < 3 ? 1 : std::max<size_t>(1, word.size() / 3) + 1;
  std::string_view best;
  for (const auto& part : parts) {
    if (part.title.empty()) continue;
    for (const KnownField& field : part.fields) {
      const auto distance = static_cast<size_t>(edit_distance(word, squashed(field.name)));
      if (distance >= least) continue;
      least = distance;
      best = field.name;
    }
  }
  return best;
}

std::string UnknownFields::header() const {
  std::string out;
  for (const auto& [path, nearest] : named) {
    out += (out.empty() ? "" : ", ") + path;
    if (!nearest.empty()) out += fmt::format(";nearest=\"{}\"", nearest);
  }
  if (more > 0) out += fmt::format(", and-{}-more", more);
  return out;
}

UnknownFields check_fields(const Json& root, const FieldTable& table, bool strict, Fields& fields) {
  Check check(strict, fields);
  check.object(root, table, "");
  return check.take();
}

}  // namespace moesaic::openai
