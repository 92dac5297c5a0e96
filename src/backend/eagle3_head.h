// The part of a draft head that is the same on every device: its checks, its taps' places and its graph. A
// device has the graph's ops. docs/design/speculation.md has the formula.
#pragma once

#include <functional>
#include <vector>

#include "backend/draft_head.h"

namespace moesaic {

class Eagle3DraftHead : public DraftHead {
 public:
  // The parts of its backend that the head uses.
  struct Owner {
    const ModelConfig& config;
    const KvLayout& layout;
    std::function<bool()> cache_allocated;
  };
  explicit Eagle3DraftHead(Owner owner) : owner_(std::move(owner)) {}

  Status load(const Eagle3Config& config, const Eagle3Weights& weights) final;
  bool loaded() const final { return !boundaries_.empty(); }
  Status set_taps(const std::vector<int>& boundaries) override;
  void trace(DraftTrace trace) final { trace_ = std::move(trace); }
  std::vector<MemoryPart> memory(const Eagle3Config& config, const Eagle3Weights& weights,
                                 const KvLayout& layout) const final {
    return parts(config, weight_bytes(config, weights), layout);
  }

  std::vector<MemoryPart> memory(const KvLayout& layout) const {  // for a loaded head
    return parts(config_, weight_bytes_, layout);
  }
  void unload();  // the model is another one
  // Once the owner's layout is known.
  Status alloc_kv();

 protected:
  // Rows [first, first + rows) of a round (core/draft_batch.h).
  struct Part {
    int round = 0, first = 0, rows = 0;
  };
  struct RoundSize {
    int rows = 0, logit_rows = 0;
  };

  // Runs the graph. It ends with the round that has no rows, or none whose logits are wanted.
  Status run_rounds();
  Status ready() const;  // an error where there is no head, or no cache

  // Loads what validate() and validate_shapes() of core/eagle3.h pass; config() is set. drop() frees all that
  // was loaded or allocated.
  virtual Status load_weights(const Eagle3Weights& weights) = 0;
  virtual Status allocate_cache() = 0;
  virtual void drop() = 0;
  virtual double weight_bytes(const Eagle3Config& config, const Eagle3Weights& weights) const = 0;

  // The ops. Those of the layer are the ones that the model's layers run through.
  virtual RoundSize size_of(int round) const = 0;
  virtual int rows_at_once() const { return 1 << 30; }   // rows that fuse(), join() and qkv() take
  virtual Status fuse(const Part& part) = 0;             // fc of the taps: g of the first round
  virtual Status join(const Part& part) = 0;             // u of every row, r of those with logits
  virtual Status qkv(const Part& part) = 0;              // K and V of every row, Q of those with logits
  virtual Status attend(int round, int logit_rows) = 0;  // and o_proj, added to r
  virtual Status mlp(int logit_rows) = 0;                // r to y
  virtual Status unembed(int logit_rows) = 0;            // the last norm and lm_head
  virtual Status choose(int round) = 0;                  // the tokens, and g of the next round

  const Owner& owner() const { return owner_; }
  const Eagle3Config& config() const { return config_; }
  const std::vector<int>& boundaries() const { return boundaries_; }
  const std::vector<int32_t>& target_ids() const { return target_ids_; }
  const DraftTrace& traced() const { return trace_; }

 private:
  std::vector<MemoryPart> parts(const Eagle3Config& config, double weights, const KvLayout& layout) const;

  Owner owner_;
  Eagle3Config config_;
  std::vector<int32_t> target_ids_;
  std::vector<int> boundaries_;  // where the taps are; none: no head is loaded
  double weight_bytes_ = 0;
  bool cached_ = false;
  DraftTrace trace_;
};

}  // namespace moesaic
