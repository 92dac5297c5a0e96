#include "core/choose_token.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace moesaic {
namespace {

// Rows have 201,088 logits, and most requests want a sum over all of them: four at a time.
using Floats = float __attribute__((vector_size(16)));
using Bits = uint32_t __attribute__((vector_size(16)));
constexpr size_t kLanes = 4, kBlock = 1024;
constexpr float kNever = -std::numeric_limits<float>::infinity(), kMost = std::numeric_limits<float>::max();

bool likelier(const Candidate& a, const Candidate& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

// ids: as choose_token() takes them.
Candidate candidate(std::span<const float> logits, std::span<const int32_t> ids, size_t i) {
  return {logits[i], ids.empty() ? static_cast<int32_t>(i) : ids[i]};
}

Floats all(float v) { return Floats{v, v, v, v}; }
// Loads four logits from `at` on, and -infinity behind the last.
Floats load(std::span<const float> logits, size_t at) {
  Floats v = all(kNever);
  if (at + kLanes <= logits.size()) {
    std::memcpy(&v, &logits[at], sizeof(v));
  } else {
    std::memcpy(&v, &logits[at], (logits.size() - at) * sizeof(float));
  }
  return v;
}

// NaN if one of them is NaN or +infinity.
float largest(std::span<const float> logits) {
  Floats top = all(kNever);
  Bits good = ~Bits{};
  for (size_t i = 0; i < logits.size(); i += kLanes) {
    const Floats v = load(logits, i);
    good &= std::bit_cast<Bits>(v <= all(kMost));
    top = v > top ? v : top;
  }
  float most = kNever;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (good[lane] == 0) return std::numeric_limits<float>::quiet_NaN();
    most = std::max(most, top[lane]);
  }
  return most;
}

// e^x for x in [-87, 0], within 2 units in the last place: 2^n times a polynomial of what is left.
Floats exp_below(Floats x) {
  constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;  // ln 2 in two parts
  constexpr float kRound = 12582912.0f;                                                // 1.5 * 2^23
  const Floats shifted = x * kLog2E + kRound, n = shifted - kRound;
  const Floats r = x - n * kHigh - n * kLow;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Bits exponent = (std::bit_cast<Bits>(shifted) - std::bit_cast<uint32_t>(kRound) + 127) << 23;
  return p * std::bit_cast<Floats>(exponent);
}

// Probabilities but for a factor: e to the power of a logit's distance from the top, in temperatures. 0
// beyond `least`.
struct Weigh {
  float top;
  double temperature, least;

  double below(float logit) const { return (double{logit} - top) / temperature; }
  // Writes the weights of a block and gives their sum.
  double operator()(std::span<const float> block, std::span<Floats> weights) const {
    const auto scale = static_cast<float>(1 / temperature), bound = static_cast<float>(least);
    Floats sums{};
    for (size_t i = 0; i < block.size(); i += kLanes) {
      const Floats x = (load(block, i) - top) * scale;
      const Floats w = exp_below(x >= -87.0f ? x : all(-87.0f));
      sums += weights[i / kLanes] = x >= bound ? w : Floats{};
    }
    return double{sums[0]} + sums[1] + sums[2] + sums[3];
  }
  // Calls body(first index, weights, their sum) for each block until it returns false.
  template <typename Body>
  void each_block(std::span<const float> logits, const Body& body) const {
    std::array<Floats, kBlock / kLanes> weights;
    for (size_t i = 0; i < logits.size(); i += kBlock) {
      const auto block = logits.subspan(i, std::min(kBlock, logits.size() - i));
      const double sum = (*this)(block, weights);
      if (!body(i, std::span(reinterpret_cast<const float*>(weights.data()), block.size()), sum)) return;
    }
  }
  double total(std::span<const float> logits) const {
    double sum = 0;
    each_block(logits, [&](size_t, std::span<const float>, double s) { return sum += s, true; });
    return sum;
  }
};

struct Weighted {
  Candidate candidate;
  double weight;
};
double sum(std::span<const Weighted> list) {
  double total = 0;
  for (const Weighted& w : list) total += w.weight;
  return total;
}

// The fewest first ones whose weights reach `mass`: their number; all where none do.
size_t first_reaching(std::span<const Weighted> list, double mass) {
  for (size_t i = 0; i < list.size(); ++i) {
    if ((mass -= list[i].weight) <= 0) return i + 1;
  }
  return list.size();
}

// The fewest likeliest whose weights reach `mass`: their number. They come to stand in front, the least
// likely of them last. Sorts no more than it must: a flat distribution has most of the vocabulary here.
size_t reach(std::span<Weighted> list, double mass) {
  constexpr size_t kFew = 64;
  const auto before = [](const Weighted& a, const Weighted& b) { return likelier(a.candidate, b.candidate); };
  size_t begin = 0, end = list.size();
  while (end - begin > kFew) {
    const size_t middle = (begin + end) / 2;
    std::nth_element(&list[begin], &list[middle], list.data() + end, before);
    const double first = sum(list.subspan(begin, middle - begin));
    if (first >= mass) {
      end = middle;
    } else {
      mass -= first, begin = middle;
    }
  }
  std::sort(list.data() + begin, list.data() + end, before);
  return begin + first_reaching(list.subspan(begin, end - begin), mass);
}

// Tokens less likely than an even share of what top_p leaves out are all left out: together they weigh less.
float least_in_nucleus(const Weigh& weigh, double top_p, double total, size_t tokens) {
  const double bound = std::log((1 - top_p) * total / static_cast<double>(tokens)) - 1e-3;
  return static_cast<float>(weigh.top + weigh.temperature * std::max(bound, weigh.least));
}

// The token in whose share `uniform` falls, of all in the order of ids.
int32_t choose_by_id(std::span<const float> logits, const Weigh& weigh, double uniform) {
  double left = uniform * weigh.total(logits);
  int32_t token = -1;
  weigh.each_block(logits, [&](size_t first, std::span<const float> weights, double sum) {
    if (sum == 0) return true;
    const bool here = left < sum;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) continue;
      token = static_cast<int32_t>(first + i);
      if (here && (left -= weights[i]) < 0) return false;
    }
    if (here) return false;
    left -= sum;
    return true;
  });
  return token;
}

}  // namespace

bool all_finite(std::span<const float> logits) {
  Bits good = ~Bits{};
  for (size_t i = 0; i < logits.size() / kLanes * kLanes; i += kLanes) {
    const Floats v = load(logits, i);
    good &= std::bit_cast<Bits>(v <= all(kMost)) & std::bit_cast<Bits>(v >= all(-kMost));
  }
  bool rest = true;
  for (size_t i = logits.size() / kLanes * kLanes; i < logits.size(); ++i)
    rest = rest && std::isfinite(logits[i]);
  return rest && (good[0] & good[1] & good[2] & good[3]) != 0;
}

double log_sum_exp(std::span<const float> logits) {
  const float top = largest(logits);
  double sum = 0;
  for (const float v : logits) sum += std::exp(double{v} - top);
  return top + std::log(sum);
}

// The least likely of those kept stands in front: hardly any logit gets past it.
std::vector<Candidate> likeliest(std::span<const float> logits, std::span<const int32_t> ids, size_t n) {
  constexpr size_t kFew = 1024;  // more are sorted faster
  n = std::min(n, logits.size());
  std::vector<Candidate> kept;
  if (n == 0) return kept;
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c = candidate(logits, ids, i);
    if (n > kFew || kept.size() < n) {
      kept.push_back(c);
      if (n <= kFew) std::push_heap(kept.begin(), kept.end(), likelier);
    } else if (likelier(c, kept.front())) {
      std::pop_heap(kept.begin(), kept.end(), likelier);
      kept.back() = c;
      std::push_heap(kept.begin(), kept.end(), likelier);
    }
  }
  std::partial_sort(kept.begin(), kept.begin() + static_cast<int64_t>(n), kept.end(), likelier);
  kept.resize(n);
  return kept;
}

int32_t choose_token(std::span<const float> logits, std::span<const int32_t> ids, const DeviceSampling& s) {
  const float top = largest(logits);
  if (!std::isfinite(top)) return -1;
  if (s.temperature == 0 || s.top_k == 1)
    return ids.empty() ? static_cast<int32_t>(std::ranges::find(logits, top) - logits.begin())
                       : likeliest(logits, ids, 1)[0].second;
  if (s.top_k == 0 && s.top_p == 1 && ids.empty())
    return choose_by_id(logits, Weigh{top, s.temperature, s.least}, s.uniform);

  const Weigh weigh{top, s.temperature, kNoChance};
  std::vector<Weighted> kept;
  const auto keep = [&](const Candidate& c) { kept.push_back({c, std::exp(weigh.below(c.first))}); };
  double total = 0;
  if (s.top_k > 0) {
    std::ranges::for_each(likeliest(logits, ids, static_cast<size_t>(s.top_k)), keep);
    total = sum(kept);
  } else {
    total = weigh.total(logits);
    const float least = s.top_p < 1 ? least_in_nucleus(weigh, s.top_p, total, logits.size()) : kNever;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= least) keep(candidate(logits, ids, i));
    }
  }
  if (s.top_p < 1) kept.resize(reach(kept, s.top_p * total));
  std::erase_if(kept, [&](const Weighted& w) { return weigh.below(w.candidate.first) < s.least; });
  const double beyond = std::nextafter(s.uniform * sum(kept), INFINITY);  // on an edge the next token begins
  if (s.top_k > 0 || s.top_p < 1) return kept[reach(kept, beyond) - 1].candidate.second;
  std::ranges::sort(kept, {}, [](const Weighted& w) { return w.candidate.second; });
  return kept[first_reaching(kept, beyond) - 1].candidate.second;
}

}  // namespace moesaic
