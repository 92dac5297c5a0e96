// Sets of byte strings as automata that call each other: enough for nested JSON, small enough to follow byte
// by byte. A rule is the state that it begins in; it ends in a return state, and a call goes on behind it.
//
// Automata are made back to front: each function below takes the state that follows and gives the state that
// its own bytes begin in.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::grammar {

using StateId = int32_t;
inline constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();

// A special token is the byte kSpecial and its name, so that no text spells it; any token that ends the text
// is also the byte kEnd. Neither byte occurs in UTF-8.
inline constexpr uint8_t kSpecial = 0xFF, kEnd = 0xFE;

struct Edge {
  uint8_t low, high;  // unused in kSplit
  StateId next;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const Edge&, const Edge&) = default;
};

struct State {
  enum class Kind : uint8_t {
    kBytes,   // one byte, along each edge that has it
    kSplit,   // no byte, along every edge; none: a dead end
    kCall,    // the rule `body`, then next
    kRepeat,  // the rule `body` min to max times, then next. The rule takes at least one byte
    kReturn
  };
  Kind kind = Kind::kReturn;
  StateId body = -1, next = -1;
  uint32_t min = 0, max = 0;
  std::vector<Edge> edges;
  friend bool operator==(const State&, const State&) = default;
};

class Automaton {
 public:
  // Schemas that need more are refused (full()); no more states are made then. Equal states are one as soon
  // as they are made; kMaxMade counts each.
  static constexpr int kMaxStates = 200'000, kMaxMade = 500'000;

  Automaton() { add({}); }

  StateId end_of_rule() const { return 0; }
  StateId split(const std::vector<StateId>& targets);
  StateId bytes(std::vector<Edge> edges) {
    return add_once({State::Kind::kBytes, -1, -1, 0, 0, std::move(edges)});
  }
  StateId byte(uint8_t value, StateId next) { return bytes({{value, value, next}}); }
  StateId literal(std::string_view text, StateId next);
  StateId special(std::string_view name, StateId next) { return byte(kSpecial, literal(name, next)); }
  StateId call(StateId rule, StateId next) { return add_once({State::Kind::kCall, rule, next}); }
  StateId repeat(StateId rule, uint32_t min, uint32_t max, StateId next);
  // A split whose targets come later, for what refers to itself.
  StateId forward() { return add({State::Kind::kSplit}); }
  void define(StateId forward, const std::vector<StateId>& targets);

  bool full() const { return full_; }
  // The limit that full() is about.
  std::string limit() const;
  int size() const { return static_cast<int>(states_.size()); }
  const State& operator[](StateId id) const { return states_[id]; }

  // To be called once all states are made. Finds what can still reach the end of its rule, takes out what
  // cannot, says once what is there several times, and numbers what the functions below give.
  void finish();
  bool can_end(StateId id) const { return can_end_[id]; }
  // May the rest of the rule, from this state on, take no byte?
  bool may_be_empty(StateId id) const { return may_be_empty_[id]; }
  // Higher than that of every state that is reached without a byte, in the rule or in those it calls, but for
  // loops.
  int rank(StateId id) const { return rank_[id]; }
  // Bytes that no edge tells apart have one.
  int byte_class(uint8_t byte) const { return class_of_[byte]; }
  int byte_classes() const { return classes_; }

 private:
  using Marks = std::vector<bool>;  // by state

  StateId add(State state);
  StateId add_once(State state);
  // The state in the table that is equal to this one; this one, if it is the first.
  StateId first_equal(StateId id);
  void grow();
  template <typename Holds>
  Marks marked(const std::vector<std::vector<StateId>>& leads_here, const Holds& holds) const;
  void find_ends();
  void simplify();
  StateId simplified(StateId id) const;
  StateId silent_next(StateId id, size_t i) const;
  void find_ranks();
  void find_classes();

  std::vector<State> states_;
  struct Place {
    StateId state = -1;  // none
    uint32_t hash = 0;
  };
  std::vector<Place> table_;  // those of different states; open addressing, a power of two
  size_t in_table_ = 0;
  int made_ = 0;
  Marks can_end_, may_be_empty_;
  Marks may_take_;  // the rest of the rule may take a byte
  std::vector<int32_t> rank_;
  std::array<uint8_t, 256> class_of_{};
  int classes_ = 1;
  bool full_ = false;
};

}  // namespace moesaic::grammar
