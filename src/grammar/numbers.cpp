#include "grammar/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace moesaic::grammar {
namespace {

constexpr size_t kIntegerDigits = 18, kNumberDigits = 15;

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
  Magnitudes(Automaton& a, const Bound& low, const std::optional<Bound>& high, bool whole, StateId next)
      : a_(a), low_(low), high_(high), whole_(whole), next_(next) {
    fraction_digits_ = std::max(kNumberDigits, low.value.fraction.size());
    if (high) fraction_digits_ = std::max(fraction_digits_, high->value.fraction.size());
  }

  StateId build() {
    const size_t most = whole_ ? kIntegerDigits : kNumberDigits, least = low_.value.whole.size();
    size_t last = std::max(most, least);
    // A bound beyond what is spelled at all is none.
    if (high_ && high_->value.whole.size() > last) high_.reset();
    if (high_) last = high_->value.whole.size();
    std::vector<StateId> starts;
    for (size_t digits = least; digits <= last; ++digits) {
      digits_ = digits;
      whole_states_.clear();
      const bool at_high = high_ && digits == high_->value.whole.size();
      starts.push_back(whole_part(0, digits == least, at_high));
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
      edges.push_back({byte, byte, after(at_low && c == from_low, at_high && c == from_high)});
    }
    return a_.bytes(std::move(edges));
  }

  StateId whole_part(size_t at, bool at_low, bool at_high) {
    if (at == digits_) return end_of_whole(at_low, at_high);
    const auto [entry, fresh] = whole_states_.try_emplace({at, at_low, at_high}, -1);
    if (!fresh) return entry->second;
    const bool leading = at == 0 && digits_ > 1;
    const char low = at_low ? low_.value.whole[at] : '1';
    const char high = at_high ? high_->value.whole[at] : '9';
    const StateId state = digit(at_low || leading, at_high, low, high,
                                [&](bool l, bool h) { return whole_part(at + 1, at_low && l, h); });
    return entry->second = state;
  }

  StateId end_of_whole(bool at_low, bool at_high) {
    std::vector<StateId> ways;
    if (within(0, at_low, at_high)) ways.push_back(next_);
    if (!whole_) ways.push_back(a_.byte('.', fraction(0, at_low, at_high)));
    return a_.split(ways);
  }

  // Behind `at` digits of the fraction, with at least one more to come.
  StateId fraction(size_t at, bool at_low, bool at_high) {
    const auto [entry, fresh] = fraction_states_.try_emplace({at, at_low, at_high}, -1);
    if (!fresh) return entry->second;
    const char low = at_low ? digit_of(low_, at) : '0', high = at_high ? digit_of(*high_, at) : '9';
    const StateId state = digit(at_low, at_high, low, high, [&](bool l, bool h) {
      std::vector<StateId> ways;
      if (within(at + 1, l, h)) ways.push_back(next_);
      if (at + 1 < fraction_digits_) ways.push_back(fraction(at + 1, l, h));
      return a_.split(ways);
    });
    return entry->second = state;
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
  bool whole_;
  StateId next_;
  size_t digits_ = 1, fraction_digits_;
  std::map<std::tuple<size_t, bool, bool>, StateId> whole_states_, fraction_states_;
};

StateId ranged(Automaton& a, const NumberRange& range, bool whole, StateId next) {
  const Bound zero, above_zero{.included = false};
  const auto& [low, high] = range;
  const auto magnitude = [](const Bound& b) {
    return Bound{{false, b.value.whole, b.value.fraction}, b.included};
  };
  std::vector<StateId> signs;
  if (!high || !high->value.negative)
    signs.push_back(Magnitudes(a, low && !low->value.negative ? *low : zero, high, whole, next).build());
  if (!low || low->value.negative) {
    const Bound least = high && high->value.negative ? magnitude(*high) : above_zero;
    const std::optional<Bound> most = low ? std::optional(magnitude(*low)) : std::nullopt;
    signs.push_back(a.byte('-', Magnitudes(a, least, most, whole, next).build()));
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

StateId numbers(Automaton& a, const NumberRange& range, StateId next) {
  if (range.low || range.high) return ranged(a, range, false, next);
  const StateId digits = a.bytes({{'0', '9', a.split({next, a.bytes({{'0', '9', next}})})}});
  const StateId exponent = a.split({digits, a.bytes({{'+', '+', digits}, {'-', '-', digits}})});
  return ranged(a, range, false, a.split({next, a.bytes({{'E', 'E', exponent}, {'e', 'e', exponent}})}));
}

}  // namespace moesaic::grammar
