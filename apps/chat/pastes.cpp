#include "chat/pastes.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic::chat {
namespace {

constexpr size_t kMostBytes = 500;  // in the line itself

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
}

}  // namespace

std::string Pastes::shown(const std::string& text) {
  const auto lines = std::count(text.begin(), text.end(), '\n') + 1;
  if (lines == 1 && text.size() <= kMostBytes) return text;
  for (const Paste& p : pastes_) {
    if (p.text == text) return p.name;
  }
  const std::string size = lines > 1 ? fmt::format("{} lines", lines) : fmt::format("{} bytes", text.size());
  pastes_.push_back({fmt::format("[paste {}: {}]", pastes_.size() + 1, size), text});
  return pastes_.back().name;
}

std::string Pastes::expand(std::string_view line) const {
  std::string out;
  for (size_t at = 0; at < line.size();) {
    const auto paste = std::find_if(pastes_.begin(), pastes_.end(),
                                    [&](const Paste& p) { return line.substr(at).starts_with(p.name); });
    out += paste == pastes_.end() ? std::string(1, line[at]) : paste->text;
    at += paste == pastes_.end() ? 1 : paste->name.size();
  }
  return out;
}

std::string clean_paste(std::string_view typed) {
  std::string text;
  for (size_t i = 0; i < typed.size(); ++i) {
    if (typed[i] == '\r' && i > 0 && typed[i - 1] == '\n') continue;  // CR LF
    const char c = typed[i] == '\r' ? '\n' : typed[i];
    if (!is_control(c)) text += c;
  }
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace moesaic::chat
