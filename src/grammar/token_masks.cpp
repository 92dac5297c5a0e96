#include "grammar/token_masks.h"

#include <algorithm>

namespace moesaic::grammar {
namespace {

// 25 KB each for 201,088 tokens.
constexpr size_t kKeptMasks = 256;
constexpr uint64_t kQuickWork = 2'000;  // some 0.2 ms
constexpr size_t kQuickPlaces = 64;
// More than the bytes of a token can cost: each is a step of at most Machine::kMaxConfigurations.
constexpr uint64_t kMostWork = uint64_t{1} << 40;
// Nodes of the tree that cost as much as one step of the machine.
constexpr uint64_t kNodesPerStep = 16;
constexpr size_t kSituationsPerCall = 1 << 14;
// Parts of a situation that are looked at one by one, each with a walk; more of them take one walk together.
constexpr size_t kMaxParts = 8;

}  // namespace

size_t TokenMasks::ConfigurationsHash::operator()(const Configurations& configurations) const {
  uint64_t h = configurations.size();
  for (const Configuration& p : configurations)
    h = (h ^ (static_cast<uint64_t>(p.state) << 32 | static_cast<uint32_t>(p.stack))) * 0x9E3779B97F4A7C15u,
    h ^= h >> 29;
  return h;
}

TokenMasks::TokenMasks(const Automaton& automaton, StateId rule, const TokenTrie& trie, uint64_t mask_work)
    : trie_(trie), mask_work_(mask_work), machine_(automaton), path_(trie.depth() + 1) {
  number({});
  start_ = number(machine_.enter(rule, kBottom));
}

TokenMasks::Situation TokenMasks::number(Configurations configurations) {
  const auto [entry, fresh] =
      numbers_.try_emplace(std::move(configurations), static_cast<Situation>(situations_.size()));
  if (fresh) {
    situations_.push_back(&entry->first);
    next_.resize(next_.size() + machine_.automaton().byte_classes(), entry->first.empty() ? kNowhere : -1);
  }
  return entry->second;
}

TokenMasks::Situation TokenMasks::next(Situation from, uint8_t byte) {
  const Automaton& a = machine_.automaton();
  const size_t at = static_cast<size_t>(from) * a.byte_classes() + a.byte_class(byte);
  if (next_[at] >= 0) return next_[at];
  if (gives_up()) return kNowhere;
  if (work() > work_limit_ || situations_.size() > kMaxSituations + kSituationsPerCall)
    return cut_ = true, kNowhere;
  const Situation to = number(machine_.step(*situations_[from], byte));
  return next_[at] = to;
}

void TokenMasks::begin_call(Effort effort, uint64_t full_work) {
  effort_ = effort;
  work_limit_ = work() + (effort == Effort::kQuick ? kQuickWork : full_work);
  gave_up_ = cut_ = false;
}

uint64_t TokenMasks::work() const { return machine_.work() + nodes_ / kNodesPerStep; }

bool TokenMasks::gives_up() {
  gave_up_ = gave_up_ || (effort_ == Effort::kQuick && work() > work_limit_);
  return gave_up_;
}

std::optional<TokenMasks::Situation> TokenMasks::after(Situation from, std::string_view bytes,
                                                       Effort effort) {
  begin_call(effort, kMostWork);
  for (const char c : bytes) from = next(from, static_cast<uint8_t>(c));
  if (gave_up_) return {};
  return from;
}

// The tokens of a single byte: whatever else was cut, one of them goes on.
void TokenMasks::add_single_bytes(Situation at, Bits& tokens) {
  work_limit_ = work() + kMostWork;
  const auto& nodes = trie_.nodes();
  for (size_t i = 0; i < nodes.size(); i = nodes[i].end)
    if (next(at, nodes[i].byte) != kNowhere) add_tokens(nodes[i], tokens);
}

void TokenMasks::add_tokens(const TokenTrie::Node& node, Bits& tokens) const {
  for (int32_t t = node.first_token; t < node.last_token; ++t) {
    const int32_t token = trie_.tokens()[t];
    tokens[token / 64] |= uint64_t{1} << (token % 64);
  }
}

TokenMasks::Situation TokenMasks::behind(Stack stack) {
  const auto [entry, fresh] = behind_.try_emplace(stack, kNowhere);
  if (fresh) entry->second = number(machine_.leave(stack));
  return entry->second;
}

bool TokenMasks::leaves(Situation at) const {
  const Configurations& configurations = *situations_[at];
  return std::any_of(configurations.begin(), configurations.end(), [&](const Configuration& p) {
    return machine_.automaton()[p.state].kind == State::Kind::kReturn;
  });
}

void TokenMasks::walk(int32_t first, int32_t last, int32_t depth, Situation from, Bits& tokens,
                      std::vector<int32_t>* ends) {
  const auto& nodes = trie_.nodes();
  path_[depth] = from;
  for (int32_t i = first; i < last && !gives_up(); ++nodes_) {
    const TokenTrie::Node& node = nodes[i];
    const Situation here = next(path_[node.depth - 1], node.byte);
    if (here == kNowhere) {
      i = node.end;
      continue;
    }
    path_[node.depth] = here;
    add_tokens(node, tokens);
    if (ends != nullptr && leaves(here)) ends->push_back(i);
    ++i;
  }
}

const TokenMasks::Local& TokenMasks::local(Situation inside) {
  static const Local none;
  const auto found = locals_.find(inside);
  if (found != locals_.end()) return found->second;
  if (locals_.size() >= kKeptMasks) locals_.clear();
  Local local{.tokens = Bits((trie_.vocab_size() + 63) / 64), .ends = {}};
  walk(0, static_cast<int32_t>(trie_.nodes().size()), 0, inside, local.tokens, &local.ends);
  if (gave_up_) return none;
  if (cut_) return cut_local_ = std::move(local);
  return locals_.emplace(inside, std::move(local)).first->second;
}

// Configurations that share a stack.
void TokenMasks::add_part(const Configurations& part, Bits& tokens) {
  Configurations inside = part;
  for (Configuration& p : inside) p.stack = kElsewhere;
  const Local& local = this->local(number(std::move(inside)));
  if (gave_up_) return;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] |= local.tokens[i];
  if (part[0].stack == kBottom || local.ends.empty()) return;
  const Situation from = behind(part[0].stack);
  for (const int32_t node : local.ends) {
    const TokenTrie::Node& n = trie_.nodes()[node];
    walk(node + 1, n.end, n.depth, from, tokens, nullptr);
  }
}

std::optional<std::span<const uint64_t>> TokenMasks::mask(Situation at, Effort effort) {
  auto coarse = coarse_.find(at);
  if (coarse == coarse_.end()) {
    if (effort == Effort::kQuick && situations_[at]->size() > kQuickPlaces) return {};
    // No token has more bytes than the tree is deep.
    const auto depth = static_cast<uint32_t>(trie_.depth());
    coarse = coarse_.emplace(at, number(machine_.coarse(*situations_[at], depth))).first;
  }
  at = coarse->second;
  const auto found = masks_.find(at);
  if (found != masks_.end()) return found->second;
  begin_call(effort, mask_work_);
  if (masks_.size() >= kKeptMasks) masks_.clear();
  std::map<Stack, Configurations> parts;
  for (const Configuration& p : *situations_[at]) parts[p.stack].push_back(p);
  Bits tokens((trie_.vocab_size() + 63) / 64);
  if (parts.size() > kMaxParts) {
    walk(0, static_cast<int32_t>(trie_.nodes().size()), 0, at, tokens, nullptr);
  } else {
    for (const auto& [stack, part] : parts) add_part(part, tokens);
  }
  if (gave_up_) return {};
  if (cut_) add_single_bytes(at, tokens);
  return masks_.emplace(at, std::move(tokens)).first->second;
}

TokenMasks::Situation TokenMasks::adopt(const TokenMasks& other, Situation at) {
  return number(machine_.adopt(other.machine_, *other.situations_[at]));
}

}  // namespace moesaic::grammar
