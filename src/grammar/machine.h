// An automaton at work: where in it one may be, with which calls open, after the bytes so far.
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

struct Place {
  StateId state;  // kBytes, or a return to kBottom or kElsewhere
  Stack stack;
  friend auto operator<=>(const Place&, const Place&) = default;
};
using Places = std::vector<Place>;  // sorted, each once

class Machine {
 public:
  // More places at a time are not followed: what follows is then only a part of what the automaton takes.
  static constexpr size_t kMaxPlaces = 2048;

  explicit Machine(const Automaton& automaton) : automaton_(automaton) {
    frames_.resize(2, Frame{.next = -1, .count = 0, .below = kBottom});
  }

  Places enter(StateId rule, Stack stack);
  Places step(const Places& from, uint8_t byte);
  // Behind the rule that was called with this stack on top.
  Places leave(Stack stack);
  // The same places in terms of this machine; `other` runs the same automaton.
  Places adopt(const Machine& other, const Places& places);
  // Places that differ only in how often repetitions were taken, and agree on the next `bytes` bytes, as one:
  // counts that far from both limits are set back.
  Places coarse(const Places& places, uint32_t bytes);
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
  Places take_found();
  // The places with their stacks made here anew, each frame changed by `edit`.
  template <typename Edit>
  Places rebuilt(const Machine& from, const Places& places, const Edit& edit);

  const Automaton& automaton_;
  std::vector<Frame> frames_;
  std::unordered_map<Frame, Stack, FrameHash> stacks_;
  std::unordered_set<uint64_t> seen_;
  std::vector<Place> open_;
  Places found_;
  uint64_t work_ = 0;
};

// Is this text, as a whole, of the rule?
bool accepts(const Automaton& automaton, StateId rule, std::string_view text);

}  // namespace moesaic::grammar
