#include "grammar/token_masks.h"

#include <algorithm>
#include <utility>

namespace moesaic::grammar {
namespace {

// 25 KB each for 201,088 tokens.
constexpr size_t kKeptMasks = 256;
constexpr size_t kQuickPlaces = 64;
constexpr size_t kKeptEnds = 1 << 20;
// Nodes of the tree that cost as much as one step of the machine.
constexpr uint64_t kNodesPerStep = 16, kNodesBetweenLooks = 256;
constexpr uint64_t kNever = uint64_t{1} << 62;
// Parts of a situation that are looked at one by one, each with a walk; more of them take one walk together.
constexpr size_t kMaxParts = 8;

// In place of a situation:
constexpr TokenMasks::Situation kUnknown = -1, kTooCostly = -2;

}  // namespace

TokenMasks::TokenMasks(const Automaton& automaton, StateId rule, const TokenTrie& trie, uint64_t mask_work)
    : trie_(trie),
      mask_work_(mask_work),
      machine_(automaton, static_cast<uint32_t>(trie.depth())) {  // no token has more bytes
  number({});
  if (const Machine::Step first = machine_.enter(rule, kBottom)) start_ = number(*first);
}

size_t TokenMasks::bytes() const {
  const size_t row = machine_.automaton().byte_classes() * sizeof(Situation) + 32;
  return machine_.bytes() + situations_.bytes() + next_.size() * row + behind_.size() * sizeof(Situation) +
         local_ends_ * sizeof(int32_t);
}

uint64_t TokenMasks::work() const { return machine_.work() + nodes_ / kNodesPerStep; }

TokenMasks::Situation TokenMasks::number(std::span<const Configuration> configurations) {
  const auto [situation, fresh] = situations_.add(configurations);
  if (fresh) {
    const int classes = machine_.automaton().byte_classes();
    next_.push_back(std::make_unique<Situation[]>(classes));
    std::fill_n(next_.back().get(), classes, configurations.empty() ? kNowhere : kUnknown);
  }
  return situation;
}

// A quick step may look at what is left to it; all others are finished.
uint64_t TokenMasks::step_limit() const {
  const uint64_t spent = work(), end = std::min(slice_end_, cut_at_);
  if (spent >= end) return 0;
  return effort_ == Effort::kQuick ? std::min(end - spent, Machine::kMaxStep) : Machine::kMaxStep;
}

TokenMasks::Situation TokenMasks::numbered(const Machine::Step& step, uint64_t limit) {
  if (step) return number(*step);
  return limit < Machine::kMaxStep ? kUnknown : kTooCostly;
}

// kUnknown: the work of this time is done. kTooCostly: too much for any time.
TokenMasks::Situation TokenMasks::next(Situation from, uint8_t byte) {
  const int at = machine_.automaton().byte_class(byte);
  if (const Situation known = next_[from][at]; known != kUnknown) return known;
  const uint64_t limit = step_limit();
  if (limit == 0) return kUnknown;
  if (bytes() > most_bytes_) return kTooCostly;
  const Situation to = numbered(machine_.step(situations_[from], byte, limit), limit);
  return next_[from][at] = to;
}

TokenMasks::Situation TokenMasks::behind(Stack stack) {
  if (behind_.size() <= static_cast<size_t>(stack)) behind_.resize(stack + 1, kUnknown);
  if (behind_[stack] != kUnknown) return behind_[stack];
  const uint64_t limit = step_limit();
  if (limit == 0) return kUnknown;
  if (bytes() > most_bytes_) return kTooCostly;
  const Situation to = numbered(machine_.leave(stack, limit), limit);
  return behind_[stack] = to;
}

// True where the work of this turn is done and the mask's limit is not reached.
bool TokenMasks::pauses(Situation found) const { return found == kUnknown && work() < cut_at_; }

void TokenMasks::begin(Effort effort) {
  effort_ = effort;
  slice_end_ = work() + (effort == Effort::kQuick ? kQuickWork : kSliceWork);
}

// The steps made so far are known, so the next time soon is where this one paused.
Progress TokenMasks::after(Situation from, std::string_view bytes, Situation& to) {
  cut_at_ = kNever;
  most_bytes_ = kWalkBytes;
  for (const char c : bytes) {
    from = next(from, static_cast<uint8_t>(c));
    if (from < 0) return from == kUnknown ? Progress::kPaused : Progress::kTooCostly;
  }
  to = from;
  return Progress::kDone;
}

void TokenMasks::add_tokens(const TokenTrie::Node& node, Bits& tokens) const {
  for (int32_t t = node.first_token; t < node.last_token; ++t) {
    const int32_t token = trie_.tokens()[t];
    tokens[token / 64] |= uint64_t{1} << (token % 64);
  }
}

bool TokenMasks::leaves(Situation at) const {
  const auto configurations = situations_[at];
  return std::any_of(configurations.begin(), configurations.end(), [&](const Configuration& p) {
    return machine_.automaton()[p.state].kind == State::Kind::kReturn;
  });
}

// False: paused.
bool TokenMasks::begin_mask(Mask& mask) {
  const auto exact = situations_[mask.of_];
  if (effort_ == Effort::kQuick && exact.size() > kQuickPlaces) return false;
  const Configurations coarse = machine_.coarse(exact);
  mask.coarse_ = number(coarse);
  mask.path_.resize(trie_.depth() + 1);
  mask.tokens_.assign((trie_.vocab_size() + 63) / 64, 0);
  mask.stage_ = Mask::Stage::kParts;
  if (masks_.contains(mask.coarse_)) return true;
  std::vector<Configuration> by_stack = coarse;
  std::stable_sort(by_stack.begin(), by_stack.end(),
                   [](const Configuration& a, const Configuration& b) { return a.stack < b.stack; });
  for (size_t i = 0, end = 0; i < by_stack.size(); i = end) {
    const Stack stack = by_stack[i].stack;
    for (; end < by_stack.size() && by_stack[end].stack == stack; ++end) by_stack[end].stack = kElsewhere;
    if (mask.parts_.size() == kMaxParts) {
      mask.parts_ = {{kBottom, mask.coarse_}};
      return true;
    }
    mask.parts_.push_back({stack, number(std::span(by_stack).subspan(i, end - i))});
  }
  return true;
}

// Nodes [first, last) below a node of this depth, reached in situation `from`. False: paused.
bool TokenMasks::walk(Mask& mask, int32_t first, int32_t last, int32_t depth, Situation from, Bits& tokens,
                      std::vector<int32_t>* ends) {
  const auto& nodes = trie_.nodes();
  if (mask.node_ < 0) mask.node_ = first, mask.path_[depth] = from;
  for (int32_t& i = mask.node_; i < last; ++nodes_) {
    if (nodes_ % kNodesBetweenLooks == 0) {
      if (work() >= stop_at_) break;
      if (work() >= slice_end_) return false;
    }
    const TokenTrie::Node& node = nodes[i];
    const Situation here = next(mask.path_[node.depth - 1], node.byte);
    if (pauses(here)) return false;
    if (here <= kNowhere) {
      mask.cut_ = mask.cut_ || here < kNowhere;
      i = node.end;
      continue;
    }
    mask.path_[node.depth] = here;
    add_tokens(node, tokens);
    if (ends != nullptr && leaves(here)) ends->push_back(i);
    ++i;
  }
  mask.cut_ = mask.cut_ || mask.node_ < last;
  mask.node_ = -1;
  return true;
}

// Sees to it that the part's local_ is there. False: paused.
bool TokenMasks::find_local(Mask& mask, Situation inside) {
  if (mask.local_ != nullptr) return true;
  if (const auto known = locals_.find(inside); known != locals_.end()) {
    mask.local_ = known->second;
  } else {
    if (mask.node_ < 0) mask.found_ = {.tokens = Bits(mask.tokens_.size()), .ends = {}};
    const auto nodes = static_cast<int32_t>(trie_.nodes().size());
    if (!walk(mask, 0, nodes, 0, inside, mask.found_.tokens, &mask.found_.ends)) return false;
    mask.local_ = std::make_shared<const Local>(std::move(mask.found_));
    if (!mask.cut_) keep_local(inside, mask.local_);
  }
  for (size_t i = 0; i < mask.tokens_.size(); ++i) mask.tokens_[i] |= mask.local_->tokens[i];
  return true;
}

void TokenMasks::keep_local(Situation inside, std::shared_ptr<const Local> local) {
  if (locals_.size() >= kKeptMasks || local_ends_ + local->ends.size() > kKeptEnds) {
    locals_.clear();
    local_ends_ = 0;
  }
  local_ends_ += local->ends.size();
  locals_.emplace(inside, std::move(local));
}

// False: paused.
bool TokenMasks::advance_part(Mask& mask) {
  const Mask::Part& part = mask.parts_[mask.part_];
  if (!find_local(mask, part.inside)) return false;
  const auto& ends = mask.local_->ends;
  if (part.stack != kBottom && !ends.empty()) {
    const Situation from = behind(part.stack);
    if (pauses(from)) return false;
    mask.cut_ = mask.cut_ || from < kNowhere;
    for (; from > kNowhere && mask.end_ < ends.size(); ++mask.end_) {
      const int32_t node = ends[mask.end_];
      const TokenTrie::Node& n = trie_.nodes()[node];
      if (!walk(mask, node + 1, n.end, n.depth, from, mask.tokens_, nullptr)) return false;
    }
  }
  mask.local_ = nullptr;
  mask.end_ = 0;
  ++mask.part_;
  return true;
}

// The tokens of a single byte: whatever else was cut, one of them goes on.
Progress TokenMasks::add_single_bytes(Mask& mask) {
  const auto& nodes = trie_.nodes();
  if (mask.node_ < 0) mask.node_ = 0;
  for (int32_t& i = mask.node_; i < static_cast<int32_t>(nodes.size()); i = nodes[i].end) {
    const Situation here = next(mask.coarse_, nodes[i].byte);
    if (here < kNowhere) return here == kUnknown ? Progress::kPaused : Progress::kTooCostly;
    if (here != kNowhere) add_tokens(nodes[i], mask.tokens_);
  }
  return Progress::kDone;
}

Progress TokenMasks::advance_stage(Mask& mask) {
  if (mask.stage_ == Mask::Stage::kBegin && !begin_mask(mask)) return Progress::kPaused;
  if (masks_.contains(mask.coarse_)) return Progress::kDone;
  if (mask.stage_ == Mask::Stage::kParts) {
    while (mask.part_ < mask.parts_.size())
      if (!advance_part(mask)) return Progress::kPaused;
    mask.stage_ = Mask::Stage::kSingleBytes;
  }
  if (mask.cut_) {
    cut_at_ = stop_at_ = kNever;
    most_bytes_ = kMostBytes;
    const Progress progress = add_single_bytes(mask);
    if (progress != Progress::kDone) return mask.work_ > kMostWork ? Progress::kTooCostly : progress;
  }
  if (masks_.size() >= kKeptMasks) masks_.clear();
  masks_.emplace(mask.coarse_, std::move(mask.tokens_));
  return Progress::kDone;
}

Progress TokenMasks::advance(Mask& mask) {
  const uint64_t before = work();
  cut_at_ = before + (mask_work_ - std::min(mask_work_, mask.work_));
  stop_at_ = before + (2 * mask_work_ - std::min(2 * mask_work_, mask.work_));
  most_bytes_ = kWalkBytes;
  const Progress progress = advance_stage(mask);
  mask.work_ += work() - before;
  return progress;
}

std::span<const uint64_t> TokenMasks::tokens(const Mask& mask) const { return masks_.at(mask.coarse_); }

std::optional<TokenMasks::Situation> TokenMasks::adopt(const TokenMasks& other, Situation at) {
  const Machine::Step adopted = machine_.adopt(other.machine_, other.situations_[at]);
  if (!adopted) return {};
  return number(*adopted);
}

}  // namespace moesaic::grammar
