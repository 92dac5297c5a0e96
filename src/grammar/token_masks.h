// The tokens that may come next (a mask), for each situation that answers of one grammar reach; computed
// once.
//
// A mask is found by a walk down the vocabulary's tree. The tokens that stay inside a rule are the same
// wherever the rule is called from, so they are kept apart (Local), with the nodes at which the rule may end;
// from those the walk continues after the call. So the inside of strings, where nearly all tokens are
// allowed, is walked once and not once for each property.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/machine.h"
#include "grammar/token_trie.h"

namespace moesaic::grammar {

// The work of one turn. The next turn goes on with what is not finished.
enum class Effort {
  kQuick,  // kQuickWork
  kSlice   // kSliceWork, and up to Machine::kMaxStep more where one byte costs that
};
inline constexpr uint64_t kQuickWork = 1'000, kSliceWork = 10'000;  // at most some 0.2 ms and 2 ms

enum class Progress {
  kDone,
  kPaused,    // go on the next time
  kTooCostly  // never: one of the limits of Machine and TokenMasks
};

// Not for several threads at a time.
class TokenMasks {
 public:
  using Situation = int32_t;                // the number of a set of configurations
  static constexpr Situation kNowhere = 0;  // no answer begins with the bytes so far

  // The most work of a mask, some 20 ms, before the rest is taken for kNowhere; with the single bytes it may
  // cost kMostWork.
  static constexpr uint64_t kMaskWork = 200'000, kMostWork = 2'000'000;
  // See full(). Behind kWalkBytes nothing but single bytes is looked at.
  static constexpr size_t kFullBytes = 16 << 20, kWalkBytes = 24 << 20, kMostBytes = 32 << 20;

  // Automaton (finished) and tree must outlive the masks.
  TokenMasks(const Automaton& automaton, StateId rule, const TokenTrie& trie, uint64_t mask_work = kMaskWork);

  // None: the beginning alone costs too much.
  std::optional<Situation> start() const { return start_; }
  // The calls of after() and advance() from here on are of this effort together.
  void begin(Effort effort);
  // Follows `bytes` from `from`.
  Progress after(Situation from, std::string_view bytes, Situation& to);

  // A mask in progress, of the situation that it is made for.
  class Mask;
  // Goes on with it. Others may do the same in between with theirs.
  Progress advance(Mask& mask);
  // One bit a token, the lowest first: [ceil(vocabulary / 64)]. Of a mask that is done, until the next call.
  std::span<const uint64_t> tokens(const Mask& mask) const;

  // Time to replace this object, which frees nothing. To be asked between tokens. Within one token, a walk
  // that meets very many new situations takes the rest for kNowhere: its mask then allows too few tokens, but
  // always those of a single byte.
  bool full() const { return bytes() > kFullBytes; }
  size_t bytes() const;
  // None: it takes too much memory.
  std::optional<Situation> adopt(const TokenMasks& other, Situation at);
  // States, edges, callers and nodes looked at, a measure of the time spent.
  uint64_t work() const;

 private:
  using Bits = std::vector<uint64_t>;
  struct Local {
    Bits tokens;
    std::vector<int32_t> ends;  // nodes
  };

  Situation number(std::span<const Configuration> configurations);
  Situation numbered(const Machine::Step& step, uint64_t limit);
  uint64_t step_limit() const;
  Situation next(Situation from, uint8_t byte);
  Situation behind(Stack stack);
  bool begin_mask(Mask& mask);
  bool advance_part(Mask& mask);
  bool find_local(Mask& mask, Situation inside);
  bool walk(Mask& mask, int32_t first, int32_t last, int32_t depth, Situation from, Bits& tokens,
            std::vector<int32_t>* ends);
  Progress add_single_bytes(Mask& mask);
  Progress advance_stage(Mask& mask);
  void keep_local(Situation inside, std::shared_ptr<const Local> local);
  bool pauses(Situation found) const;
  void add_tokens(const TokenTrie::Node& node, Bits& tokens) const;
  bool leaves(Situation at) const;

  const TokenTrie& trie_;
  uint64_t mask_work_;
  Machine machine_;
  std::optional<Situation> start_;
  InternedLists<Configuration> situations_;
  std::vector<std::unique_ptr<Situation[]>> next_;  // by situation: [byte classes]; see next()
  std::vector<Situation> behind_;                   // by stack, as far as known
  std::unordered_map<Situation, std::shared_ptr<const Local>> locals_;
  size_t local_ends_ = 0;                      // of all of them
  std::unordered_map<Situation, Bits> masks_;  // of coarse situations (Machine::coarse)
  // The turn in progress:
  Effort effort_ = Effort::kSlice;
  uint64_t nodes_ = 0;  // of the tree, over all calls
  // Amounts of work() at which the walk pauses, the mask is cut, and the walk ends.
  uint64_t slice_end_ = 0, cut_at_ = 0, stop_at_ = 0;
  size_t most_bytes_ = kWalkBytes;
};

class TokenMasks::Mask {
 public:
  explicit Mask(Situation of) : of_(of) {}

 private:
  friend TokenMasks;
  enum class Stage { kBegin, kParts, kSingleBytes };
  // Configurations that share a stack, which kElsewhere stands for in `inside`. Those of many stacks are one
  // part that nothing is behind (kBottom).
  struct Part {
    Stack stack;
    Situation inside;
  };

  Situation of_;
  Stage stage_ = Stage::kBegin;
  Situation coarse_ = kNowhere;
  Bits tokens_;
  std::vector<Part> parts_;
  size_t part_ = 0, end_ = 0;           // in parts_, and in local_->ends
  std::shared_ptr<const Local> local_;  // of this part, once it is known
  Local found_;                         // before that
  int32_t node_ = -1;                   // of the walk in progress; -1: none is
  std::vector<Situation> path_;         // of that walk, by depth
  uint64_t work_ = 0;                   // so far
  bool cut_ = false;                    // by a limit: what follows is not all that may
};

}  // namespace moesaic::grammar
