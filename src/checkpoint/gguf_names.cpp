#include "checkpoint/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>

#include "base/nearest.h"

namespace moesaic {
namespace {

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// True if text contains word with no letter, digit or underscore next to it. Both are in lower case.
bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> gguf_parts(const std::string& path) {
  // -00001-of-00003.gguf
  constexpr size_t kTail = 20, kDigits = 5;
  const auto digits = [](std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (path.size() < kTail) return {path};
  const std::string stem = path.substr(0, path.size() - kTail), tail = path.substr(stem.size());
  const std::string number = tail.substr(1, kDigits), count = tail.substr(10, kDigits);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !tail.ends_with(".gguf") || !digits(number) ||
      !digits(count))
    return {path};
  const int parts = std::stoi(count);
  if (parts < 1 || std::stoi(number) < 1 || std::stoi(number) > parts) return {path};
  std::vector<std::string> names;
  for (int i = 1; i <= parts; ++i) names.push_back(fmt::format("{}-{:05}-of-{}.gguf", stem, i, count));
  return names;
}

std::vector<std::string> gguf_models(std::span<const std::string> names) {
  std::set<std::string> models;
  for (const std::string& name : names) {
    const std::string file = lower_case(base_name(name));
    if (file.ends_with(".gguf") && file.find("mmproj") == std::string::npos &&
        file.find("imatrix") == std::string::npos)
      models.insert(gguf_parts(name).front());
  }
  return {models.begin(), models.end()};
}

bool is_head(const std::string& path) {
  constexpr std::string_view kPrefixes[] = {"eagle3-", "dflash-", "dspark-", "mtp-"};
  const std::string file = lower_case(base_name(path));
  return file.ends_with(".gguf") &&
         std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return file.starts_with(prefix); });
}

std::vector<std::string> without_heads(std::vector<std::string> models) {
  if (!std::ranges::all_of(models, is_head)) std::erase_if(models, is_head);
  return models;
}

std::string gguf_tag(const std::string& path) {
  constexpr std::string_view kSuffix = ".gguf", kPart = "-00001-of-00001.gguf";
  const std::string name = base_name(path);
  if (!name.ends_with(kSuffix)) return {};
  const bool part = gguf_parts(name).size() > 1 || name.ends_with(kPart);
  const std::string stem = name.substr(0, name.size() - (part ? kPart.size() : kSuffix.size()));
  const size_t start = stem.find_last_of("-.");
  if (start == std::string::npos || start + 1 == stem.size()) return {};
  std::string tag = stem.substr(start + 1);
  if (!std::ranges::all_of(tag, is_word)) return {};
  std::ranges::transform(tag, tag.begin(), [](unsigned char c) { return std::toupper(c); });
  return tag;
}

std::vector<std::string> with_gguf_tag(std::span<const std::string> models, std::string_view tag) {
  const std::string wanted = lower_case(tag);
  std::vector<std::string> found;
  if (wanted.empty()) return found;
  for (const std::string& model : models) {
    if (lower_case(gguf_tag(model)) == wanted) found.push_back(model);
  }
  if (found.empty())
    std::ranges::copy_if(models, std::back_inserter(found),
                         [&](const std::string& model) { return has_word(lower_case(model), wanted); });
  if (found.size() > 1) {
    std::vector<std::string> plain;
    std::ranges::copy_if(found, std::back_inserter(plain), [&](const std::string& model) {
      return lower_case(base_name(model)).find("ud-" + wanted) == std::string::npos;
    });
    if (!plain.empty()) found = std::move(plain);
  }
  return found;
}

}  // namespace moesaic
