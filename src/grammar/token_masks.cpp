#include "grammar/token_masks.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace moesaic::grammar {
namespace {

// 25 KB each for 201,088 tokens.
constexpr size_t kKeptCounted = 16;
constexpr size_t kQuickPlaces = 64;
constexpr size_t kKeptEnds = 1 << 20;
// Nodes of the tree that cost as much as one step of the machine.
constexpr uint64_t kNodesPerStep = 16, kNodesBetweenLooks = 256;
constexpr uint64_t kNever = uint64_t{1} << 62;
// Parts of a situation that are looked at one by one, each with a walk; more of them take one walk together.
constexpr size_t kMaxParts = 8;

// In place of a situation:
constexpr TokenMasks::Situation kUnknown = -1;
constexpr TokenMasks::Situation kTooCostly = -2;

void add(const TokenMasks::Bits& from, TokenMasks::Bits& to) {
  std::ranges::transform(from, to, to.begin(), std::bit_or());
}

}  // namespace

TokenMasks::TokenMasks(const Automaton& automaton, StateId rule, const TokenTrie& trie, uint64_t mask_work,
                       MaskSharers* sharers)
    : trie_(trie),
      mask_work_(mask_work),
      sharers_(sharers),
      machine_(automaton, static_cast<uint32_t>(trie.depth())) {  // no token has more bytes
  number({});                                                     // kNowhere
  counted_.reserve(kKeptCounted);
  if (const Machine::Step first = machine_.enter(rule, kBottom)) start_ = number(*first);
  if (sharers_ != nullptr) ++sharers_->count_;
}

TokenMasks::~TokenMasks() {
  if (sharers_ != nullptr) --sharers_->count_;
}

size_t TokenMasks::share(size_t all, size_t least, size_t most) const {
  const int sharers = sharers_ != nullptr ? sharers_->count() : 1;
  return std::clamp(all / static_cast<size_t>(std::max(1, sharers)), least, most);
}

size_t TokenMasks::bytes() const {
  const size_t row = machine_.automaton().byte_classes() * sizeof(Situation) + 32;
  return machine_.bytes() + situations_.bytes() + next_.size() * row + behind_.size() * sizeof(Situation) +
         local_ends_ * sizeof(int32_t);
}

uint64_t TokenMasks::work() const { return machine_.work() + nodes_ / kNodesPerStep; }

TokenMasks::Situation TokenMasks::number(std::span<const Configuration> configurations) {
  const Situation situation = situations_.add(configurations).first;
  // One may have no row yet, for which there was no memory.
  while (std::ssize(next_) < situations_.size()) {
    const int classes = machine_.automaton().byte_classes();
    auto row = std::make_unique<Situation[]>(classes);
    std::fill_n(row.get(), classes, next_.empty() ? kNowhere : kUnknown);
    next_.push_back(std::move(row));
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

// Removes the tokens of all nodes below, too.
void TokenMasks::remove_tokens(const TokenTrie::Node& node, Bits& tokens) const {
  const auto& nodes = trie_.nodes();
  const bool last = node.end == std::ssize(nodes);
  const auto end = last ? static_cast<int32_t>(trie_.tokens().size()) : nodes[node.end].first_token;
  for (int32_t t = node.first_token; t < end; ++t) {
    const int32_t token = trie_.tokens()[t];
    tokens[token / 64] &= ~(uint64_t{1} << (token % 64));
  }
}

bool TokenMasks::leaves(Situation at) const {
  const auto configurations = situations_[at];
  return std::any_of(configurations.begin(), configurations.end(), [&](const Configuration& p) {
    return machine_.automaton()[p.state].kind == State::Kind::kReturn;
  });
}

std::shared_ptr<TokenMasks::Making>& TokenMasks::making(Situation coarse) {
  if (masks_.size() >= kept() / 2 && !masks_.contains(coarse)) older_masks_ = std::exchange(masks_, {});
  std::shared_ptr<Making>& made = masks_[coarse];
  if (const auto older = older_masks_.find(coarse); made == nullptr && older != older_masks_.end())
    made = older->second;
  return made;
}

// False: paused.
bool TokenMasks::begin_mask(Mask& mask) {
  const auto exact = situations_[mask.of_];
  if (effort_ == Effort::kQuick && exact.size() > kQuickPlaces) return false;
  const Situation coarse = number(machine_.coarse(exact));
  std::shared_ptr<Making>& kept = making(coarse);
  if (kept == nullptr) {
    auto made = std::make_shared<Making>();
    made->coarse = coarse;
    made->tokens.resize((trie_.vocab_size() + 63) / 64);
    made->path.resize(trie_.depth() + 1);
    divide(*made);
    kept = std::move(made);
  }
  mask.making_ = kept;
  return true;
}

void TokenMasks::divide(Making& making) {
  const auto coarse = situations_[making.coarse];
  std::vector<Configuration> by_stack(coarse.begin(), coarse.end());
  std::ranges::stable_sort(by_stack, {}, &Configuration::stack);
  for (size_t i = 0, end = 0; i < by_stack.size(); i = end) {
    const Stack stack = by_stack[i].stack;
    for (; end < by_stack.size() && by_stack[end].stack == stack; ++end) by_stack[end].stack = kElsewhere;
    if (making.parts.size() == kMaxParts) {
      making.parts = {{kBottom, making.coarse}};
      return;
    }
    making.parts.push_back({stack, number(std::span(by_stack).subspan(i, end - i))});
  }
}

bool TokenMasks::alike(Situation a, Situation b, int32_t reach) const {
  return a == b || machine_.alike(situations_[a], situations_[b], static_cast<uint32_t>(reach));
}

// Follows a node for the other count, too; `same` is true if both allow the same from here on. False: paused.
bool TokenMasks::follow_other(Making& making, const TokenTrie::Node& node, Situation here, bool& same) {
  const Situation there = next(making.other_path[node.depth - 1], node.byte);
  if (pauses(there)) return false;
  making.other_path[node.depth] = std::max(there, kNowhere);
  same = here >= kNowhere && there >= kNowhere && alike(here, there, node.height);
  return true;
}

// Nodes [first, last) below a node of this depth, reached in situation `from`. False: paused.
bool TokenMasks::walk(Making& making, int32_t first, int32_t last, int32_t depth, Situation from,
                      Bits& tokens, std::vector<int32_t>* ends) {
  const auto& nodes = trie_.nodes();
  if (making.node < 0) {
    making.node = first, making.path[depth] = from;
    if (making.other != nullptr) making.other_path[depth] = making.other->from;
  }
  for (int32_t& i = making.node; i < last; ++nodes_) {
    if (nodes_ % kNodesBetweenLooks == 0) {
      if (work() >= stop_at_) break;
      if (work() >= slice_end_) return false;
    }
    const TokenTrie::Node& node = nodes[i];
    const Situation here = next(making.path[node.depth - 1], node.byte);
    if (pauses(here)) return false;
    bool same = false;
    if (making.other != nullptr && !follow_other(making, node, here, same)) return false;
    if (same || here <= kNowhere) {
      if (!same && making.other != nullptr) remove_tokens(node, tokens);
      making.cut = making.cut || here < kNowhere;
      i = node.end;
      continue;
    }
    making.path[node.depth] = here;
    add_tokens(node, tokens);
    if (ends != nullptr && node.height > 0 && leaves(here)) ends->push_back(i);
    ++i;
  }
  making.cut = making.cut || making.node < last;
  making.node = -1;
  return true;
}

// Sees to it that the part's local is there. False: paused.
bool TokenMasks::find_local(Making& making, Situation inside) {
  if (making.local != nullptr) return true;
  if (const auto known = locals_.find(inside); known != locals_.end()) {
    making.local = known->second;
  } else {
    if (making.node < 0) making.found = {.tokens = Bits(making.tokens.size()), .ends = {}};
    const auto nodes = static_cast<int32_t>(trie_.nodes().size());
    if (!walk(making, 0, nodes, 0, inside, making.found.tokens, &making.found.ends)) return false;
    auto local = std::make_shared<const Local>(std::move(making.found));
    if (!making.cut) keep_local(inside, local);
    making.local = std::move(local);
  }
  add(making.local->tokens, making.tokens);
  return true;
}

void TokenMasks::keep_local(Situation inside, std::shared_ptr<const Local> local) {
  if (locals_.size() >= kept() || local_ends_ + local->ends.size() > kKeptEnds) {
    locals_.clear();
    local_ends_ = 0;
  }
  local_ends_ += local->ends.size();
  locals_.emplace(inside, std::move(local));
}

// Another count that is on the same side of the least: what may end the repetition differs nowhere else.
std::shared_ptr<const TokenMasks::Counted>* TokenMasks::other_count(const Counted& counted) {
  const auto other = std::ranges::find_if(counted_, [&](const auto& kept) {
    return kept->inside == counted.inside && kept->caller.next == counted.caller.next &&
           kept->caller.below == counted.caller.below &&
           machine_.enough(kept->caller) == machine_.enough(counted.caller);
  });
  return other == counted_.end() ? nullptr : &*other;
}

void TokenMasks::begin_counted(Making& making, Counted counted) {
  if (const auto* other = other_count(counted)) making.other = *other;
  making.other_path.resize(making.path.size());
  counted.tokens = making.other == nullptr ? Bits(making.tokens.size()) : making.other->tokens;
  making.counted = std::move(counted);
}

// A mask that was cut may still have tokens of the other count that this one does not allow.
void TokenMasks::end_counted(Making& making) {
  if (!making.cut || making.other == nullptr) add(making.counted->tokens, making.tokens);
  if (!making.cut) {
    auto kept = std::make_shared<const Counted>(std::move(*making.counted));
    if (auto* other = other_count(*kept)) {
      *other = std::move(kept);
    } else {
      if (counted_.size() == kKeptCounted) counted_.erase(counted_.begin());
      counted_.push_back(std::move(kept));
    }
  }
  making.counted.reset();
  making.other = nullptr;
}

// Follows the tokens that go on where the part's rule ends. False: paused.
bool TokenMasks::walk_behind(Making& making, const Part& part) {
  const auto& nodes = trie_.nodes();
  const auto& ends = making.local->ends;
  if (part.stack == kBottom || ends.empty()) return true;
  const Situation from = behind(part.stack);
  if (pauses(from)) return false;
  making.cut = making.cut || from < kNowhere;
  if (from <= kNowhere) return true;
  // A special token may have two strings, so that what one of them takes away another one may have given.
  const auto caller = ends.back() < trie_.special_nodes() ? machine_.counted(part.stack) : std::nullopt;
  if (caller && !making.counted)
    begin_counted(making, {.inside = part.inside, .caller = *caller, .from = from});
  Bits& tokens = caller ? making.counted->tokens : making.tokens;
  for (; making.end < ends.size(); ++making.end) {
    const TokenTrie::Node& n = nodes[ends[making.end]];
    if (!walk(making, ends[making.end] + 1, n.end, n.depth, from, tokens, nullptr)) return false;
  }
  if (caller) end_counted(making);
  return true;
}

// False: paused.
bool TokenMasks::advance_part(Making& making) {
  const Part& part = making.parts[making.part];
  if (!find_local(making, part.inside) || !walk_behind(making, part)) return false;
  making.local = nullptr;
  making.end = 0;
  ++making.part;
  return true;
}

// The tokens of a single byte: whatever else was cut, one of them goes on.
Progress TokenMasks::add_single_bytes(Making& making) {
  const auto& nodes = trie_.nodes();
  if (making.node < 0) making.node = 0;
  for (int32_t& i = making.node; i < static_cast<int32_t>(nodes.size()); i = nodes[i].end) {
    const Situation here = next(making.coarse, nodes[i].byte);
    if (here < kNowhere) return here == kUnknown ? Progress::kPaused : Progress::kTooCostly;
    if (here != kNowhere) add_tokens(nodes[i], making.tokens);
  }
  return Progress::kDone;
}

Progress TokenMasks::advance_stage(Making& making) {
  if (making.stage == Making::Stage::kParts) {
    while (making.part < making.parts.size())
      if (!advance_part(making)) return Progress::kPaused;
    making.stage = Making::Stage::kSingleBytes;
  }
  if (making.cut) {
    cut_at_ = stop_at_ = kNever;
    most_bytes_ = kMostBytes;
    const Progress progress = add_single_bytes(making);
    if (progress != Progress::kDone) return making.work > kMostWork ? Progress::kTooCostly : progress;
  }
  making = {.stage = Making::Stage::kDone, .tokens = std::move(making.tokens)};
  return Progress::kDone;
}

Progress TokenMasks::advance(Mask& mask) {
  if (mask.making_ == nullptr && !begin_mask(mask)) return Progress::kPaused;
  Making& making = *mask.making_;
  if (making.stage == Making::Stage::kDone) return Progress::kDone;
  const uint64_t before = work();
  cut_at_ = before + (mask_work_ - std::min(mask_work_, making.work));
  stop_at_ = before + (2 * mask_work_ - std::min(2 * mask_work_, making.work));
  most_bytes_ = kWalkBytes;
  const Progress progress = advance_stage(making);
  making.work += work() - before;
  return progress;
}

std::optional<TokenMasks::Situation> TokenMasks::adopt(const TokenMasks& other, Situation at) {
  const Machine::Step adopted = machine_.adopt(other.machine_, other.situations_[at]);
  if (!adopted) return {};
  return number(*adopted);
}

}  // namespace moesaic::grammar
