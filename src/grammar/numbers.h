// The numbers of a range as automata over their decimal spelling. Without leading zeros or a plus sign; zero
// has no minus sign in a range. Values follow the digits exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "grammar/automaton.h"

namespace moesaic::grammar {

struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;  // digits, without leading or trailing zeros respectively
};
Decimal decimal_of(double value);
Decimal decimal_of(int64_t value);
Decimal decimal_of(uint64_t value);

// Below 0 where a is less than b, 0 where they are equal.
int compare(const Decimal& a, const Decimal& b);

struct Bound {
  Decimal value;
  bool included = true;
};
// Multiples of units / 10^digits; of anything where units is 0.
struct Factor {
  static constexpr uint32_t kMaxUnits = 10'000;
  uint32_t units = 0, digits = 0;
};
// Nothing where that is not at least 1 and at most kMaxUnits / 10^n.
std::optional<Factor> factor_of(const Decimal& value);
// Multiples of both.
std::optional<Factor> common(const Factor& a, const Factor& b);

struct NumberRange {
  std::optional<Bound> low, high;
  Factor factor = {};
  bool fractions = false;  // no integers
};

// Integers of up to 18 digits, so that they fit 64 bits, or as many as the bounds have; fewer where a large
// factor would take too many states.
StateId integers(Automaton& automaton, const NumberRange& range, StateId next);
// Numbers of up to 15 digits on either side of the point, or as many as the bounds have; with an exponent of
// up to two digits where nothing limits them.
StateId numbers(Automaton& automaton, const NumberRange& range, StateId next);

}  // namespace moesaic::grammar
