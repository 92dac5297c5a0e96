#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

namespace moesaic {
namespace {

constexpr size_t kLongest = 64;  // longest name; nobody mistypes more
constexpr size_t kShortestBeginning = 4;

}  // namespace

// Optimal string alignment: rows of the table for the prefixes of a.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kLongest) return "";
  std::string best;
  int least = 1 << 20;
  for (const std::string& candidate : known) {
    const bool begins = candidate.size() >= kShortestBeginning && name.starts_with(candidate);
    const int changes = edit_distance(name, candidate), distance = begins ? std::min(changes, 2) : changes;
    if (distance < least && (begins || distance <= std::max(1, static_cast<int>(candidate.size()) / 3))) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string best = nearest(name, known);
  return best.empty() ? "" : "; did you mean " + best + "?";
}

}  // namespace moesaic
