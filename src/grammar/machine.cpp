#include "grammar/machine.h"

#include <algorithm>
#include <utility>

namespace moesaic::grammar {

size_t Machine::FrameHash::operator()(const Frame& f) const {
  uint64_t h = static_cast<uint64_t>(f.next) << 32 | static_cast<uint32_t>(f.below);
  h = (h ^ (static_cast<uint64_t>(f.count) << 17)) * 0x9E3779B97F4A7C15u;
  return h ^ (h >> 29);
}

Stack Machine::push(StateId next, uint32_t count, Stack below) {
  const Frame frame{next, count, below};
  const auto [entry, fresh] = stacks_.try_emplace(frame, static_cast<Stack>(frames_.size()));
  if (fresh) frames_.push_back(frame);
  return entry->second;
}

void Machine::visit(StateId state, Stack stack) {
  const uint64_t key = static_cast<uint64_t>(state) << 32 | static_cast<uint32_t>(stack);
  if (automaton_.can_end(state) && seen_.insert(key).second) open_.push_back({state, stack});
}

// `count`: how often the rule has been taken.
void Machine::repeat(StateId id, uint32_t count, Stack stack) {
  const State& s = automaton_[id];
  if (count >= s.min) visit(s.next, stack);
  if (count >= s.max) return;
  // Where there is no limit only the way to the minimum is counted.
  const uint32_t after = s.max == kUnlimited ? std::min(count + 1, s.min) : count + 1;
  visit(s.body, push(id, after, stack));
}

void Machine::leave_to(Stack stack) {
  const Frame frame = frames_[stack];
  if (automaton_[frame.next].kind == State::Kind::kRepeat && frame.count != kUnlimited)
    repeat(frame.next, frame.count, frame.below);
  else
    visit(frame.next, frame.below);
}

void Machine::follow(StateId id, Stack stack) {
  const State& s = automaton_[id];
  switch (s.kind) {
    case State::Kind::kBytes:
      found_.push_back({id, stack});
      break;
    case State::Kind::kSplit:
      for (const Edge& edge : s.edges) visit(edge.next, stack);
      break;
    case State::Kind::kCall:
      visit(s.body, push(s.next, kUnlimited, stack));
      break;
    case State::Kind::kRepeat:
      repeat(id, 0, stack);
      break;
    case State::Kind::kReturn:
      if (stack == kBottom || stack == kElsewhere)
        found_.push_back({id, stack});
      else
        leave_to(stack);
  }
}

Configurations Machine::take_found() {
  for (; !open_.empty() && found_.size() < kMaxConfigurations; ++work_) {
    const Configuration next = open_.back();
    open_.pop_back();
    follow(next.state, next.stack);
  }
  open_.clear();
  seen_.clear();
  Configurations configurations = std::exchange(found_, {});
  std::sort(configurations.begin(), configurations.end());
  return configurations;
}

Configurations Machine::enter(StateId rule, Stack stack) {
  visit(rule, stack);
  return take_found();
}

Configurations Machine::step(const Configurations& from, uint8_t byte) {
  for (const Configuration& c : from) {
    for (const Edge& edge : automaton_[c.state].edges)
      if (edge.low <= byte && byte <= edge.high) visit(edge.next, c.stack);
  }
  work_ += from.size();
  return take_found();
}

Configurations Machine::leave(Stack stack) {
  leave_to(stack);
  return take_found();
}

template <typename Edit>
Configurations Machine::rebuilt(const Machine& from, const Configurations& configurations, const Edit& edit) {
  Configurations made;
  for (const Configuration& c : configurations) {
    std::vector<Frame> frames;
    Stack stack = c.stack;
    for (; stack != kBottom && stack != kElsewhere; stack = frames.back().below)
      frames.push_back(from.frames_[stack]);
    for (size_t i = frames.size(); i-- > 0;) {
      edit(frames[i]);
      stack = push(frames[i].next, frames[i].count, stack);
    }
    made.push_back({c.state, stack});
  }
  std::sort(made.begin(), made.end());
  made.erase(std::unique(made.begin(), made.end()), made.end());
  return made;
}

Configurations Machine::adopt(const Machine& other, const Configurations& configurations) {
  return rebuilt(other, configurations, [](const Frame&) {});
}

Configurations Machine::coarse(const Configurations& configurations, uint32_t bytes) {
  return rebuilt(*this, configurations, [&](Frame& frame) {
    const State& s = automaton_[frame.next];
    if (s.kind != State::Kind::kRepeat || frame.count == kUnlimited) return;
    const uint64_t reached = uint64_t{frame.count} + bytes;
    if (reached < s.min)
      frame.count = 0;
    else if (frame.count >= s.min && reached < s.max)
      frame.count = s.min;
  });
}

bool accepts(const Automaton& automaton, StateId rule, std::string_view text) {
  Machine machine(automaton);
  Configurations configurations = machine.enter(rule, kBottom);
  for (const char c : text) configurations = machine.step(configurations, static_cast<uint8_t>(c));
  return std::any_of(configurations.begin(), configurations.end(),
                     [&](const Configuration& p) { return automaton[p.state].kind == State::Kind::kReturn; });
}

}  // namespace moesaic::grammar
