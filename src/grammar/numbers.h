// The numbers of a range as automata over their decimal spelling. Without leading zeros or a plus sign; zero
// has no minus sign in a range. Values follow the digits exactly.
#pragma once

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

struct Bound {
  Decimal value;
  bool included = true;
};
struct NumberRange {
  std::optional<Bound> low, high;
};

// Integers of up to 18 digits, so that they fit 64 bits, or as many as the bounds have.
StateId integers(Automaton& automaton, const NumberRange& range, StateId next);
// Numbers of up to 15 digits on either side of the point, or as many as the bounds have; with an exponent of
// up to two digits where there are no bounds.
StateId numbers(Automaton& automaton, const NumberRange& range, StateId next);

}  // namespace moesaic::grammar
