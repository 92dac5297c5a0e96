#include "core/choose_token.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

using Candidate = std::pair<float, int32_t>;  // logit and token

bool likelier(const Candidate& a, const Candidate& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

// Keeps the fewest of the sorted candidates whose share reaches top_p.
template <typename Weigh>
void keep_nucleus(std::vector<Candidate>& sorted, double top_p, const Weigh& weigh) {
  double total = 0, mass = 0;
  for (const Candidate& c : sorted) total += weigh(c);
  for (size_t i = 0; i < sorted.size(); ++i) {
    mass += weigh(sorted[i]);
    if (mass >= top_p * total) return sorted.resize(i + 1);
  }
}

}  // namespace

int32_t choose_token(std::span<const float> logits, std::span<const int32_t> ids, const DeviceSampling& s) {
  const auto id_of = [&](size_t i) { return ids.empty() ? static_cast<int32_t>(i) : ids[i]; };
  Candidate best = {-INFINITY, -1};
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) return -1;
    if (const Candidate c{logits[i], id_of(i)}; best.second < 0 || likelier(c, best)) best = c;
  }
  if (s.temperature == 0 || s.top_k == 1) return best.second;
  const auto below = [&](const Candidate& c) { return (double{c.first} - best.first) / s.temperature; };
  const auto weigh = [&](const Candidate& c) { return std::exp(below(c)); };
  const bool sorts = s.top_k > 0 || s.top_p < 1;
  std::vector<Candidate> kept;
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c{logits[i], id_of(i)};
    if (below(c) >= (sorts ? -60.0 : s.least)) kept.push_back(c);
  }
  if (sorts) {
    std::ranges::sort(kept, likelier);
    if (s.top_k > 0 && std::ssize(kept) > s.top_k) kept.resize(static_cast<size_t>(s.top_k));
    if (s.top_p < 1) keep_nucleus(kept, s.top_p, weigh);
    std::erase_if(kept, [&](const Candidate& c) { return below(c) < s.least; });
  } else if (!ids.empty()) {
    std::ranges::sort(kept, {}, &Candidate::second);
  }
  double left = 0;
  for (const Candidate& c : kept) left += weigh(c);
  left *= s.uniform;
  for (const Candidate& c : kept) {
    left -= weigh(c);
    if (left < 0) return c.second;
  }
  return kept.empty() ? best.second : kept.back().second;
}

}  // namespace moesaic
