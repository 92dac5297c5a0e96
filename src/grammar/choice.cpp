#include "grammar/choice.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "text/utf8.h"

namespace moesaic::grammar {
namespace {

using Texts = std::span<const std::string>;

size_t common_prefix(Texts sorted, size_t from) {
  const std::string &first = sorted.front(), &last = sorted.back();
  const auto differ = std::mismatch(first.begin() + static_cast<ptrdiff_t>(from), first.end(),
                                    last.begin() + static_cast<ptrdiff_t>(from), last.end());
  return static_cast<size_t>(differ.first - first.begin());
}

// A tree of the ends of sorted texts, which are the same up to `from`: one place at a time.
// Equal ends are made once.
using Ends = std::unordered_map<std::string_view, StateId>;
StateId tree(Automaton& a, Texts sorted, size_t from, Ends& ends) {
  if (sorted.size() == 1) {
    const auto [entry, fresh] = ends.try_emplace(std::string_view(sorted[0]).substr(from), -1);
    return fresh ? entry->second = a.literal(entry->first, a.end_of_rule()) : entry->second;
  }
  const size_t shared = common_prefix(sorted, from);
  std::vector<StateId> ways;
  std::vector<Edge> edges;
  for (size_t i = 0; i < sorted.size() && !a.full();) {
    if (sorted[i].size() == shared) {
      ways.push_back(a.end_of_rule());
      ++i;
      continue;
    }
    const auto byte = static_cast<uint8_t>(sorted[i][shared]);
    size_t end = i + 1;
    while (end < sorted.size() && static_cast<uint8_t>(sorted[end][shared]) == byte) ++end;
    edges.push_back({byte, byte, tree(a, sorted.subspan(i, end - i), shared + 1, ends)});
    i = end;
  }
  if (!edges.empty()) ways.push_back(a.bytes(std::move(edges)));
  return a.literal(std::string_view(sorted[0]).substr(from, shared - from), a.split(ways));
}

Status check(const std::vector<std::string>& texts) {
  if (texts.empty()) return invalid("there is nothing to choose from");
  if (texts.size() > kMaxChoices)
    return invalid("{} texts are too many (at most {})", texts.size(), kMaxChoices);
  size_t bytes = 0;
  for (const std::string& text : texts) {
    if (text.empty()) return invalid("one of the texts is empty");
    if (text.size() > kMaxChoiceBytes) return invalid("a text has more than {} bytes", kMaxChoiceBytes);
    if (utf8_valid_prefix(text) != text.size()) return invalid("a text is not UTF-8");
    bytes += text.size();
  }
  if (bytes > kMaxChoicesBytes) return invalid("the texts have more than {} bytes", kMaxChoicesBytes);
  return {};
}

}  // namespace

StateId any_of_texts(Automaton& automaton, std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  Ends ends;
  return tree(automaton, texts, 0, ends);
}

Result<StateId> choice_rule(Automaton& automaton, std::vector<std::string> texts, const std::string& name) {
  if (const Status status = check(texts); !status.ok()) return invalid("{}: {}", name, status.message());
  return any_of_texts(automaton, std::move(texts));
}

}  // namespace moesaic::grammar
