// Sequences of random tokens whose drafts are accepted at chances that were asked for: what a drafter and its
// drafts cost and bring on a device, whatever the model says. The drafter runs as the engine would run it.
#pragma once

#include <random>
#include <vector>

#include "backend/backend.h"
#include "drafting/drafter.h"
#include "engine/kv_layout.h"
#include "engine/kv_pages.h"

namespace moesaic::app {

// Seconds and steps since reset().
struct DraftTimes {
  double draft = 0, verify = 0, take_back = 0;
  int steps = 0;
  int64_t tokens = 0;  // tokens by which the sequences have become longer
  double seconds() const { return draft + verify + take_back; }
};

class DraftedBatch {
 public:
  struct Options {
    int sequences = 1;
    int max_tokens = 0;  // the longest sequence, drafts included
    int max_rows = 512;  // rows of a step: at least those of all sequences' drafts
  };
  // Allocates the KV cache of the backend, which holds the model of `config`; load() has looked at the
  // memory. drafter: of this backend; it outlives the batch.
  static Result<DraftedBatch> create(Backend& backend, const ModelConfig& config, const Options& options,
                                     Drafter& drafter);

  // Every sequence begins again, with `depth` + 1 tokens, the last of which is not computed. The drafter has
  // what comes before it.
  Status restart(int depth);
  // A step. acceptance: the chance of each draft token to be accepted if the one before it was; as many are
  // drafted. None: a step without drafts, of which the drafter does not hear.
  Status step(std::span<const double> acceptance);
  // Tokens of the longest sequence.
  int length() const;
  const DraftTimes& times() const { return times_; }
  void reset_times() { times_ = {}; }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    PageTable pages;
    int computed = 0;
  };
  DraftedBatch(Backend& backend, const ModelConfig& config, const Options& options, const KvLayout& layout,
               Drafter& drafter);
  int32_t random_token() { return static_cast<int32_t>(rng_() % config_.vocab); }
  uint64_t request(size_t text) const { return first_request_ + text; }
  void add(Batch& batch, Text& text, std::span<const int32_t> drafts, int rows);
  Status run(Batch& batch);
  void tell(const Batch& batch, size_t first_text, std::span<const int> rows);
  Result<std::vector<std::vector<int32_t>>> draft(size_t tokens);
  Status compute_prompt(size_t text);
  int accept(std::span<const double> acceptance);

  Backend* backend_;
  ModelConfig config_;
  Options options_;
  KvPages pages_;
  Drafter* drafter_;
  std::vector<Text> texts_;
  uint64_t first_request_ = 0;
  DraftTimes times_;
  std::vector<float> logits_;
  std::mt19937 rng_{1};
  double draw_ = 0;  // the last step's acceptance, 0 to 1
};

}  // namespace moesaic::app
