#include "grammar/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace moesaic::grammar {
namespace {

constexpr size_t kIntegerDigits = 18, kNumberDigits = 15, kMaxRemainders = 20'000;

// digits * 10^exponent.
Decimal decimal_from(bool negative, std::string digits, int exponent) {
  if (exponent > 0) digits.append(exponent, '0'), exponent = 0;
  const auto behind = static_cast<size_t>(-exponent);  // the point
  if (digits.size() <= behind) digits.insert(0, behind + 1 - digits.size(), '0');
  Decimal d{.negative = negative, .whole = digits.substr(0, digits.size() - behind)};
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size() - 1));
  d.fraction = digits.substr(digits.size() - behind);
  d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  return d;
}

// Without signs: the spellings of low to high, digit by digit. While all digits so far are a bound's own the
// spelling is "at" that bound, and its next digit is one too.
class Magnitudes {
 public:
  Magnitudes(Automaton& a, const Bound& low, const std::optional<Bound>& high, const NumberRange& range,
             bool whole, StateId next)
      : a_(a),
        low_(low),
        high_(high),
        factor_(range.factor),
        fractions_(range.fractions),
        whole_(whole),
        next_(next) {
    const Factor& factor = factor_;
    fraction_digits_ = std::max(kNumberDigits, low.value.fraction.size());
    if (high) fraction_digits_ = std::max(fraction_digits_, high->value.fraction.size());
    if (factor.units == 0) return;
    fraction_digits_ = factor.digits;
    whole_ = whole_ || factor.digits == 0;
  }

  StateId build() {
    const size_t spelled = whole_ ? kIntegerDigits : kNumberDigits, least = low_.value.whole.size();
    // Each digit has a state for each remainder.
    const size_t most =
        factor_.units == 0 ? spelled : std::clamp<size_t>(kMaxRemainders / factor_.units, 6, spelled);
    size_t last = std::max(most, least);
    // A bound beyond what is spelled at all is none.
    if (high_ && high_->value.whole.size() > last) high_.reset();
    if (high_) last = high_->value.whole.size();
    std::vector<StateId> starts;
    for (size_t digits = least; digits <= last; ++digits) {
      digits_ = digits;
      const bool at_high = high_ && digits == high_->value.whole.size();
      starts.push_back(whole_part(0, digits == least, at_high, 0));
    }
    return a_.split(starts);
  }

 private:
  // One state per digit range that leads to the same bounds.
  template <typename Next>
  StateId digit(bool at_low, bool at_high, char from_low, char from_high, const Next& after) {
    std::vector<Edge> edges;
    for (char c = at_low ? from_low : '0'; c <= (at_high ? from_high : '9'); ++c) {
      const auto byte = static_cast<uint8_t>(c);
      edges.push_back({byte, byte, after(at_low && c == from_low, at_high && c == from_high, c - '0')});
    }
    return a_.bytes(std::move(edges));
  }

  // The remainder of the digits so far and one more.
  uint32_t remainder(uint32_t before, int digit) const {
    return factor_.units == 0 ? 0 : (before * 10 + digit) % factor_.units;
  }

  StateId whole_part(size_t at, bool at_low, bool at_high, uint32_t rest) {
    const bool leading = at == 0 && digits_ > 1;
    const auto [entry, fresh] = whole_states_.try_emplace({digits_ - at, leading, at_low, at_high, rest}, -1);
    if (!fresh) return entry->second;
    if (at == digits_) return entry->second = end_of_whole(at_low, at_high, rest);
    const char low = at_low ? low_.value.whole[at] : '1';
    const char high = at_high ? high_->value.whole[at] : '9';
    const StateId state = digit(at_low || leading, at_high, low, high, [&](bool l, bool h, int d) {
      return whole_part(at + 1, at_low && l, h, remainder(rest, d));
    });
    return entry->second = state;
  }

  StateId end_of_whole(bool at_low, bool at_high, uint32_t rest) {
    std::vector<StateId> ways;
    const bool multiple = is_multiple(rest, 0);
    if (within(0, at_low, at_high) && multiple && !fractions_) ways.push_back(next_);
    if (!whole_ && fraction_digits_ > 0)
      ways.push_back(a_.byte('.', fraction(0, at_low, at_high, rest, !fractions_)));
    return a_.split(ways);
  }

  // The fraction has `at` digits so far, and at least one more comes. enough: all of them may be 0.
  StateId fraction(size_t at, bool at_low, bool at_high, uint32_t rest, bool enough) {
    const auto [entry, fresh] = fraction_states_.try_emplace({at, at_low, at_high, rest, enough}, -1);
    if (!fresh) return entry->second;
    const char low = at_low ? digit_of(low_, at) : '0', high = at_high ? digit_of(*high_, at) : '9';
    const StateId state = digit(at_low, at_high, low, high, [&](bool l, bool h, int d) {
      std::vector<StateId> ways;
      const uint32_t now = remainder(rest, d);
      const bool done = enough || d > 0;
      if (within(at + 1, l, h) && is_multiple(now, at + 1) && done) ways.push_back(next_);
      if (at + 1 < fraction_digits_) ways.push_back(fraction(at + 1, l, h, now, done));
      return a_.split(ways);
    });
    return entry->second = state;
  }

  // With zeros for the digits of the fraction that are not written.
  bool is_multiple(uint32_t rest, size_t digits) const {
    if (factor_.units == 0) return true;
    for (; digits < factor_.digits; ++digits) rest = rest * 10 % factor_.units;
    return rest == 0;
  }

  static char digit_of(const Bound& bound, size_t at) {
    return at < bound.value.fraction.size() ? bound.value.fraction[at] : '0';
  }

  // May the number end behind `at` digits of its fraction? The bounds' fractions end in no zero.
  bool within(size_t at, bool at_low, bool at_high) const {
    const bool above = !at_low || (low_.included && at >= low_.value.fraction.size());
    return above && (!at_high || high_->included || at < high_->value.fraction.size());
  }

  Automaton& a_;
  Bound low_;
  std::optional<Bound> high_;
  Factor factor_;
  bool fractions_, whole_;
  StateId next_;
  size_t digits_ = 1, fraction_digits_;
  // By digits that are left, of spellings of any length: only one length is at the low bound, one at the
  // high.
  std::map<std::tuple<size_t, bool, bool, bool, uint32_t>, StateId> whole_states_;
  std::map<std::tuple<size_t, bool, bool, uint32_t, bool>, StateId> fraction_states_;
};

StateId ranged(Automaton& a, const NumberRange& range, bool whole, StateId next) {
  const Bound zero, above_zero{.included = false};
  const auto &low = range.low, &high = range.high;
  const auto magnitude = [](const Bound& b) {
    return Bound{{false, b.value.whole, b.value.fraction}, b.included};
  };
  std::vector<StateId> signs;
  if (!high || !high->value.negative)
    signs.push_back(
        Magnitudes(a, low && !low->value.negative ? *low : zero, high, range, whole, next).build());
  if (!low || low->value.negative) {
    const Bound least = high && high->value.negative ? magnitude(*high) : above_zero;
    const std::optional<Bound> most = low ? std::optional(magnitude(*low)) : std::nullopt;
    signs.push_back(a.byte('-', Magnitudes(a, least, most, range, whole, next).build()));
  }
  return a.split(signs);
}

}  // namespace

// The shortest digits that mean this double, as people write them.
Decimal decimal_of(double value) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(value),
                                 std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  std::string digits = text.substr(0, mark);
  std::erase(digits, '.');
  return decimal_from(value < 0, digits, exponent - static_cast<int>(digits.size()) + 1);
}
Decimal decimal_of(int64_t value) {
  const std::string text = std::to_string(value);
  return {.negative = value < 0, .whole = text.substr(value < 0 ? 1 : 0)};
}
Decimal decimal_of(uint64_t value) { return {.whole = std::to_string(value)}; }

StateId integers(Automaton& a, const NumberRange& range, StateId next) {
  return ranged(a, range, true, next);
}

int compare(const Decimal& a, const Decimal& b) {
  const auto zero = [](const Decimal& d) { return d.whole == "0" && d.fraction.empty(); };
  if (zero(a) && zero(b)) return 0;
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
                                               : a.whole.compare(b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  return a.negative ? -order : order;
}

std::optional<Factor> factor_of(const Decimal& value) {
  const std::string digits = value.whole + value.fraction;
  if (digits.size() > 9 || value.fraction.size() > kNumberDigits) return std::nullopt;
  const Factor factor{static_cast<uint32_t>(std::stoul(digits)),
                      static_cast<uint32_t>(value.fraction.size())};
  if (factor.units == 0 || factor.units > Factor::kMaxUnits) return std::nullopt;
  return factor;
}

std::optional<Factor> common(const Factor& a, const Factor& b) {
  if (a.units == 0 || b.units == 0) return a.units == 0 ? b : a;
  uint64_t x = a.units, y = b.units;
  const uint32_t digits = std::max(a.digits, b.digits);
  for (uint32_t i = a.digits; i < digits && x <= Factor::kMaxUnits; ++i) x *= 10;
  for (uint32_t i = b.digits; i < digits && y <= Factor::kMaxUnits; ++i) y *= 10;
  const uint64_t both = x > Factor::kMaxUnits || y > Factor::kMaxUnits ? 0 : std::lcm(x, y);
  if (both == 0 || both > Factor::kMaxUnits) return std::nullopt;
  return Factor{static_cast<uint32_t>(both), digits};
}

StateId numbers(Automaton& a, const NumberRange& range, StateId next) {
  const bool free = !range.low && !range.high && range.factor.units == 0 && !range.fractions;
  if (!free) return ranged(a, range, false, next);
  const StateId digits = a.bytes({{'0', '9', a.split({next, a.bytes({{'0', '9', next}})})}});
  const StateId exponent = a.split({digits, a.bytes({{'+', '+', digits}, {'-', '-', digits}})});
  return ranged(a, range, false, a.split({next, a.bytes({{'E', 'E', exponent}, {'e', 'e', exponent}})}));
}

}  // namespace moesaic::grammar
