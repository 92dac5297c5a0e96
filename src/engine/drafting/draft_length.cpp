#include "drafting/draft_length.h"

#include <algorithm>
#include <utility>

namespace moesaic {
namespace {

constexpr double kLeastGain = 1.02;
constexpr double kLeastChance = 0.02;  // a token that is hardly ever accepted is not looked at

}  // namespace

// A row costs the same whoever's it is, so the likeliest rows come first. As chances fall along a draft, the
// rows of one request are its draft's first tokens.
std::vector<int> choose_draft_lengths(const DraftChoice& c) {
  std::vector<std::pair<double, size_t>> rows;  // chance, request
  for (size_t r = 0; r < c.reach.size(); ++r) {
    for (const double chance : c.reach[r]) {
      if (chance >= kLeastChance) rows.emplace_back(chance, r);
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  rows.resize(std::min(rows.size(), static_cast<size_t>(std::max(0, c.free_rows))));
  std::vector<int> lengths(c.reach.size());
  const double plain = c.plain->seconds(c.rows);
  if (!(plain > 0) || !c.plain->knows(c.rows)) return lengths;
  double best = kLeastGain * c.rows / plain, tokens = c.rows;
  size_t kept = 0;
  for (size_t n = 1; n <= rows.size(); ++n) {
    const int all = c.rows + static_cast<int>(n);
    tokens += rows[n - 1].first;
    double seconds = c.drafted->seconds(all);
    if (!(seconds > 0)) seconds = c.plain->seconds(all);
    const double rate = tokens / (seconds + static_cast<double>(n) * c.token_seconds);
    if (rate > best) best = rate, kept = n;
  }
  for (size_t n = 0; n < kept; ++n) ++lengths[rows[n].second];
  return lengths;
}

}  // namespace moesaic
