// Runs a pushdown automaton: the configurations (state and stack) that it may be in after the bytes so far.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/automaton.h"

namespace moesaic::grammar {

// A stack of open calls. Equal stacks are one: its number in the machine.
using Stack = int32_t;
inline constexpr Stack kBottom = 0;  // a return here ends everything
// Stands for any stack, in what is computed for a rule wherever it is called from: a return here leaves it.
inline constexpr Stack kElsewhere = 1;

// Of a pushdown automaton.
struct Configuration {
  StateId state;  // kBytes, or a return to kBottom or kElsewhere
  Stack stack;
  friend auto operator<=>(const Configuration&, const Configuration&) = default;
};
using Configurations = std::vector<Configuration>;  // sorted, each once

class Machine {
 public:
  // More configurations at a time are dropped: the machine then takes only a part of what the automaton does.
  static constexpr size_t kMaxConfigurations = 2048;

  explicit Machine(const Automaton& automaton) : automaton_(automaton) {
    frames_.resize(2, Frame{.next = -1, .count = 0, .below = kBottom});
  }

  Configurations enter(StateId rule, Stack stack);
  Configurations step(const Configurations& from, uint8_t byte);
  // Behind the rule that was called with this stack on top.
  Configurations leave(Stack stack);
  // The same configurations in terms of this machine; `other` runs the same automaton.
  Configurations adopt(const Machine& other, const Configurations& configurations);
  // Configurations that differ only in how often repetitions were taken, and agree on the next `bytes` bytes,
  // as one: counts that far from both limits are set back.
  Configurations coarse(const Configurations& configurations, uint32_t bytes);
  size_t frames() const { return frames_.size(); }
  // States looked at so far, a measure of the time spent.
  uint64_t work() const { return work_; }
  const Automaton& automaton() const { return automaton_; }

 private:
  struct Frame {
    StateId next;    // a repeat state, or where to go on
    uint32_t count;  // repeat: how many times its rule will then have been taken
    Stack below;
    friend bool operator==(const Frame&, const Frame&) = default;
  };
  struct FrameHash {
    size_t operator()(const Frame& f) const;
  };

  Stack push(StateId next, uint32_t count, Stack below);
  // Where one comes from `state` without a byte, added to found_.
  void follow(StateId state, Stack stack);
  void visit(StateId state, Stack stack);
  void repeat(StateId state, uint32_t count, Stack stack);
  void leave_to(Stack stack);
  Configurations take_found();
  // Copies the configurations and their stacks into this machine, each frame changed by `edit`.
  template <typename Edit>
  Configurations rebuilt(const Machine& from, const Configurations& configurations, const Edit& edit);

  const Automaton& automaton_;
  std::vector<Frame> frames_;
  std::unordered_map<Frame, Stack, FrameHash> stacks_;
  std::unordered_set<uint64_t> seen_;
  std::vector<Configuration> open_;
  Configurations found_;
  uint64_t work_ = 0;
};

// Is this text, as a whole, of the rule?
bool accepts(const Automaton& automaton, StateId rule, std::string_view text);

}  // namespace moesaic::grammar
