// Runs a pushdown automaton: the configurations (state and stack) that it may be in after the bytes so far.
//
// A call that is made in several ways at one place of the text is followed once. What it goes back to is a
// set of callers, each with a set below it, so that a stack here stands for many stacks, and the ways to read
// a text, of which there may be exponentially many, are never listed (a graph-structured stack: Tomita 1985,
// Scott and Johnstone, "GLL parsing", 2010).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/interned_lists.h"

namespace moesaic::grammar {

// The number of a set of callers in the machine. Equal sets are one.
using Stack = int32_t;
inline constexpr Stack kBottom = 0;  // a return here ends everything
// Stands for any stack, in what is computed for a rule wherever it is called from: a return here leaves it.
inline constexpr Stack kElsewhere = 1;

// The configuration of a pushdown automaton.
struct Configuration {
  StateId state;  // kBytes, or a return to kBottom or kElsewhere
  Stack stack;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const Configuration&, const Configuration&) = default;
};
using Configurations = std::vector<Configuration>;  // sorted, each once
inline uint64_t hash_of(const Configuration& c) {
  return static_cast<uint64_t>(c.state) << 32 | static_cast<uint32_t>(c.stack);
}

// A rule that ends goes on here.
struct Caller {
  StateId next;    // a repeat state, or where to go on
  uint32_t count;  // how often the repetition's rule will have been taken; kUnlimited: it is no repetition
  Stack below;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const Caller&, const Caller&) = default;
};
inline uint64_t hash_of(const Caller& c) {
  return mixed(static_cast<uint64_t>(c.next) << 32 | static_cast<uint32_t>(c.below), c.count);
}

class Machine {
 public:
  // One byte may cost this much: some 2 ms, and 1 MB.
  static constexpr uint64_t kMaxStep = 1 << 15;
  // Calls inside each other.
  static constexpr uint32_t kMaxDepth = 1 << 15;
  static constexpr size_t kMaxAdopted = 1 << 17;  // callers

  // reach: see coarse().
  explicit Machine(const Automaton& automaton, uint32_t reach = 0);

  // These look at no more than `limit` states, edges and callers, and give nothing where that is not enough,
  // or where calls are nested too deep. What they cost is added to work().
  using Step = std::optional<Configurations>;
  Step enter(StateId rule, Stack stack, uint64_t limit = kMaxStep);
  Step step(std::span<const Configuration> from, uint8_t byte, uint64_t limit = kMaxStep);
  // Behind the rule that was called with this stack on top.
  Step leave(Stack stack, uint64_t limit = kMaxStep);
  // The same configurations in terms of this machine; `other` runs the same automaton. Nothing where that
  // takes more than kMaxAdopted callers.
  Step adopt(const Machine& other, std::span<const Configuration> configurations);

  // Configurations that differ only in how often repetitions were taken, and agree on the next `reach` bytes,
  // as one: counts that far from both limits are set back.
  Configurations coarse(std::span<const Configuration> configurations) const;
  // The stack's only caller, if that is a repetition which counts.
  std::optional<Caller> counted(Stack stack) const;
  // True if the repetition may end once its rule was taken so often.
  bool enough(const Caller& counted) const { return counted.count >= automaton_[counted.next].min; }
  // True only if both agree on the next `reach` bytes, as coarse() has it. It takes little time, and may be
  // false for what differs in more than a few counts.
  bool alike(std::span<const Configuration> a, std::span<const Configuration> b, uint32_t reach) const;

  uint64_t work() const { return work_; }
  size_t callers() const { return stacks_.items(); }
  size_t bytes() const { return stacks_.bytes() + about_.size() * sizeof(About); }
  const Automaton& automaton() const { return automaton_; }

 private:
  struct About {  // a stack
    uint32_t depth;
    Stack coarse;
  };
  // A call that is not followed yet.
  struct Call {
    int32_t rank;  // the highest first: then all callers of a rule are known before it is entered
    StateId rule;
    Caller caller;
    // NOLINTNEXTLINE(modernize-use-nullptr)
    friend auto operator<=>(const Call&, const Call&) = default;
  };

  Stack stack_of(std::span<const Caller> callers);
  uint32_t coarse_count(const Caller& caller, uint32_t reach) const;
  bool alike(Stack a, Stack b, uint32_t reach) const;
  void spend(uint64_t work) { left_ -= std::min(left_, work); }
  void begin(uint64_t limit);
  Step take_found();
  void visit(StateId state, Stack stack);
  void call(StateId rule, const Caller& caller);
  void follow_calls();
  // Adds to found_ the places that are reached from `state` without a byte.
  void follow(StateId state, Stack stack);
  void repeat(StateId state, uint32_t count, Stack stack);
  void leave_to(Stack stack);

  const Automaton& automaton_;
  uint32_t reach_;
  InternedLists<Caller> stacks_;
  std::vector<About> about_;  // by stack
  uint64_t work_ = 0;
  // The call in progress:
  uint64_t left_ = 0;  // work up to its limit
  uint64_t limit_ = 0;
  NumberSet seen_;
  std::vector<Configuration> open_;
  std::vector<Call> calls_;  // a heap
  std::vector<Caller> callers_;
  Configurations found_;
};

// Is this text, as a whole, of the rule? False too where following it costs too much.
bool accepts(const Automaton& automaton, StateId rule, std::string_view text);

}  // namespace moesaic::grammar
