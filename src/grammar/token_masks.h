// The tokens that may come next (a mask), for each situation that answers of one grammar reach; computed
// once.
//
// A mask is found by a walk down the vocabulary's tree. The tokens that stay inside a rule are the same
// wherever the rule is called from, so they are kept apart (Local), with the nodes at which the rule may end;
// from those the walk continues after the call. So the inside of strings, where nearly all tokens are
// allowed, is walked once and not once for each property.
//
// Two counts of a repetition differ only in tokens that reach one of its limits. So behind a repetition's
// rule the walk follows only what may lead to such tokens, and takes the others from the mask of another
// count. Answers that need the same mask make it together.
#pragma once

#include <atomic>
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

// How many grammars' masks share the memory for masks, which is divided evenly.
class MaskSharers {
 public:
  int count() const { return count_.load(std::memory_order_relaxed); }

 private:
  friend class TokenMasks;
  std::atomic<int> count_ = 0;
};

// Not for several threads at a time. Where memory runs out it throws, and can be used as before.
class TokenMasks {
 public:
  using Bits = std::vector<uint64_t>;
  using Situation = int32_t;                // the number of a set of configurations
  static constexpr Situation kNowhere = 0;  // no answer begins with the bytes so far

  // The most work of a mask, some 20 ms, before the rest is taken for kNowhere; with the single bytes it may
  // cost kMostWork.
  static constexpr uint64_t kMaskWork = 200'000, kMostWork = 2'000'000;
  // See full(). Behind kWalkBytes nothing but single bytes is looked at.
  static constexpr size_t kFullBytes = 16 << 20, kWalkBytes = 24 << 20, kMostBytes = 32 << 20;
  // All grammars together have kAllBytes and keep kAllKept masks, divided evenly; each has the least ones at
  // least, and at most kFullBytes and kMostKept.
  static constexpr size_t kAllBytes = 512 << 20, kLeastBytes = 512 << 10;
  static constexpr size_t kAllKept = 20'480, kLeastKept = 16, kMostKept = 512;

  // Automaton (finished), tree and sharers must outlive the masks.
  TokenMasks(const Automaton& automaton, StateId rule, const TokenTrie& trie, uint64_t mask_work = kMaskWork,
             MaskSharers* sharers = nullptr);
  ~TokenMasks();
  TokenMasks(const TokenMasks&) = delete;
  TokenMasks& operator=(const TokenMasks&) = delete;

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

  // Time to replace this object, which frees nothing. To be asked between tokens. Within one token, a walk
  // that meets very many new situations takes the rest for kNowhere: its mask then allows too few tokens, but
  // always those of a single byte.
  bool full() const { return bytes() > share(kAllBytes, kLeastBytes, kFullBytes); }
  size_t bytes() const;  // without kept_masks()
  // Masks and parts of masks that are kept, done or not: a bit a token each.
  size_t kept_masks() const { return masks_.size() + older_masks_.size() + locals_.size() + counted_.size(); }
  // None: it takes too much memory.
  std::optional<Situation> adopt(const TokenMasks& other, Situation at);
  // States, edges, callers and nodes looked at, a measure of the time spent.
  uint64_t work() const;

 private:
  struct Making;
  struct Part;
  struct Local {
    Bits tokens;
    std::vector<int32_t> ends;  // nodes
  };
  // The tokens that end a repetition's rule and go on behind it, for one count.
  struct Counted {
    Situation inside = kNowhere;
    Caller caller = {};
    Situation from = kNowhere;  // behind the rule
    Bits tokens = {};
  };

  size_t share(size_t all, size_t least, size_t most) const;
  size_t kept() const { return share(kAllKept, kLeastKept, kMostKept); }  // masks
  Situation number(std::span<const Configuration> configurations);
  Situation numbered(const Machine::Step& step, uint64_t limit);
  uint64_t step_limit() const;
  Situation next(Situation from, uint8_t byte);
  Situation behind(Stack stack);
  bool begin_mask(Mask& mask);
  std::shared_ptr<Making>& making(Situation coarse);
  void divide(Making& making);
  bool advance_part(Making& making);
  bool find_local(Making& making, Situation inside);
  bool walk_behind(Making& making, const Part& part);
  std::shared_ptr<const Counted>* other_count(const Counted& counted);
  void begin_counted(Making& making, Counted counted);
  void end_counted(Making& making);
  bool alike(Situation a, Situation b, int32_t reach) const;
  bool walk(Making& making, int32_t first, int32_t last, int32_t depth, Situation from, Bits& tokens,
            std::vector<int32_t>* ends);
  bool follow_other(Making& making, const TokenTrie::Node& node, Situation here, bool& same);
  Progress add_single_bytes(Making& making);
  Progress advance_stage(Making& making);
  void keep_local(Situation inside, std::shared_ptr<const Local> local);
  bool pauses(Situation found) const;
  void add_tokens(const TokenTrie::Node& node, Bits& tokens) const;
  void remove_tokens(const TokenTrie::Node& node, Bits& tokens) const;
  bool leaves(Situation at) const;

  const TokenTrie& trie_;
  uint64_t mask_work_;
  MaskSharers* sharers_;  // null: there are no others
  Machine machine_;
  std::optional<Situation> start_;
  InternedLists<Configuration> situations_;
  std::vector<std::unique_ptr<Situation[]>> next_;  // by situation: [byte classes]; see next()
  std::vector<Situation> behind_;                   // by stack, as far as known
  std::unordered_map<Situation, std::shared_ptr<const Local>> locals_;
  size_t local_ends_ = 0;  // ends of all locals_
  std::vector<std::shared_ptr<const Counted>> counted_;
  // Masks, done or not, by their coarse situation (Machine::coarse); the older ones are those that nobody
  // asked for since masks_ was last empty.
  std::unordered_map<Situation, std::shared_ptr<Making>> masks_, older_masks_;
  // The turn in progress:
  Effort effort_ = Effort::kSlice;
  uint64_t nodes_ = 0;  // nodes of the tree that were visited, over all calls
  // Amounts of work() at which the walk pauses, the mask is cut, and the walk ends.
  uint64_t slice_end_ = 0, cut_at_ = 0, stop_at_ = 0;
  size_t most_bytes_ = kWalkBytes;
};

// Configurations that share a stack, which kElsewhere stands for in `inside`. Those of many stacks are one
// part that nothing is behind (kBottom).
struct TokenMasks::Part {
  Stack stack;
  Situation inside;
};

// A mask that answers in the same coarse situation make together.
struct TokenMasks::Making {
  enum class Stage { kParts, kSingleBytes, kDone };

  Stage stage = Stage::kParts;
  Situation coarse = kNowhere;
  Bits tokens = {};
  std::vector<Part> parts = {};
  size_t part = 0, end = 0;                      // in parts, and in local->ends
  std::shared_ptr<const Local> local = nullptr;  // this part's, once it is known
  Local found = {};                              // before that
  int32_t node = -1;                             // where the walk in progress is; -1: there is none
  std::vector<Situation> path = {};              // the walk's, by depth
  // Behind a repetition's rule: what is found, and another count's, from which that begins.
  std::optional<Counted> counted = {};
  std::shared_ptr<const Counted> other = nullptr;
  std::vector<Situation> other_path = {};
  uint64_t work = 0;  // so far
  bool cut = false;   // by a limit: what follows is not all that may
};

class TokenMasks::Mask {
 public:
  explicit Mask(Situation of) : of_(of) {}
  // One bit a token, the lowest first: [ceil(vocabulary / 64)], once the mask is done.
  std::span<const uint64_t> tokens() const { return making_->tokens; }

 private:
  friend TokenMasks;
  Situation of_;
  std::shared_ptr<Making> making_;  // null before the first turn
};

}  // namespace moesaic::grammar
