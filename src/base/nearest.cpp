#include "base/nearest.h"

#include <algorithm>
#include <cctype>

namespace moesaic {
namespace {

constexpr size_t kLongest = 64;  // longest name; nobody mistypes more

}  // namespace

// Optimal string alignment: rows of the table for the prefixes of a.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kLongest) return "";
  std::string best;
  int least = 1 << 20;
  for (const std::string& candidate : known) {
    const int distance = edit_distance(name, candidate);
    if (distance < least && distance <= std::max(1, static_cast<int>(candidate.size()) / 3)) {
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
