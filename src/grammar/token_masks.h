// The tokens that may come next (a mask), for each situation that answers of one grammar reach; computed
// once.
//
// A mask is found by a walk down the vocabulary's tree. The tokens that stay inside a rule are the same
// wherever the rule is called from, so they are kept apart (Local), with the nodes at which the rule may end;
// from those the walk continues after the call. So the inside of strings, where nearly all tokens are
// allowed, is walked once and not once for each property.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/machine.h"
#include "grammar/token_trie.h"

namespace moesaic::grammar {

// How much a call may do. kQuick: about 0.2 ms, no result if that is not enough. kFull: always a result.
enum class Effort { kQuick, kFull };

// Not for several threads at a time.
class TokenMasks {
 public:
  using Situation = int32_t;                // the number of a set of configurations
  static constexpr Situation kNowhere = 0;  // no answer begins with the bytes so far
  static constexpr size_t kMaxSituations = 1 << 14, kMaxFrames = 1 << 18;  // see full()

  // What a mask may cost, some 20 ms, before the rest is taken for kNowhere.
  static constexpr uint64_t kMaskWork = 200'000;

  // Automaton (finished) and tree must outlive the masks.
  TokenMasks(const Automaton& automaton, StateId rule, const TokenTrie& trie, uint64_t mask_work = kMaskWork);

  Situation start() const { return start_; }
  std::optional<Situation> after(Situation from, std::string_view bytes, Effort effort);
  // One bit a token, the lowest first: [ceil(vocabulary / 64)]. Valid until the next call.
  std::optional<std::span<const uint64_t>> mask(Situation at, Effort effort);
  // Time to replace this object, which frees nothing. To be asked between tokens. Within one token, a walk
  // that meets very many new situations takes the rest for kNowhere: its mask then allows too few tokens, but
  // always those of a single byte.
  bool full() const { return situations_.size() > kMaxSituations || machine_.frames() > kMaxFrames; }
  Situation adopt(const TokenMasks& other, Situation at);

 private:
  using Bits = std::vector<uint64_t>;
  struct Local {
    Bits tokens;
    std::vector<int32_t> ends;  // nodes
  };
  struct ConfigurationsHash {
    size_t operator()(const Configurations& configurations) const;
  };

  Situation number(Configurations configurations);
  Situation next(Situation from, uint8_t byte);
  Situation behind(Stack stack);
  const Local& local(Situation inside);
  void add_part(const Configurations& part, Bits& tokens);
  // Nodes [first, last) below a node of this depth, reached in situation `from`.
  void walk(int32_t first, int32_t last, int32_t depth, Situation from, Bits& tokens,
            std::vector<int32_t>* ends);
  void add_single_bytes(Situation at, Bits& tokens);
  void add_tokens(const TokenTrie::Node& node, Bits& tokens) const;
  bool leaves(Situation at) const;
  void begin_call(Effort effort, uint64_t full_work);
  // States and nodes looked at, a measure of the time spent.
  uint64_t work() const;
  bool gives_up();

  const TokenTrie& trie_;
  uint64_t mask_work_;
  Machine machine_;
  Situation start_;
  std::vector<const Configurations*> situations_;  // keys of numbers_
  std::unordered_map<Configurations, Situation, ConfigurationsHash> numbers_;
  std::vector<Situation> next_;  // [situations, byte classes]; -1: not yet known
  std::unordered_map<Stack, Situation> behind_;
  std::unordered_map<Situation, Local> locals_;
  Local cut_local_;                                  // of the call in progress, not to be used again
  std::unordered_map<Situation, Situation> coarse_;  // whose mask is the same (Machine::coarse)
  std::unordered_map<Situation, Bits> masks_;        // of coarse ones
  std::vector<Situation> path_;                      // of a walk, by depth
  // Of the call in progress:
  Effort effort_ = Effort::kFull;
  uint64_t nodes_ = 0;  // of the tree, over all calls
  uint64_t work_limit_ = 0;
  bool gave_up_ = false;  // a quick call needs more work than it may do
  bool cut_ = false;      // by a limit: what follows is not all that may
};

}  // namespace moesaic::grammar
