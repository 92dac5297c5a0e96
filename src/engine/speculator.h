// Speculative decoding: gets drafts for the requests of a step.
//
// A step computes a request's last token and its draft as consecutive rows, and every row gives the logits of
// the token behind it. The request's own sampler takes the rows in order, with the random number, penalties
// and grammar of each step. The first row samples what would have been sampled without a draft. If that is
// the draft's first token the second row is the one that the next step would have computed, and so on; the
// rows behind the first difference are dropped. So the tokens are those without drafts, whatever the sampling
// parameters.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"
#include "speculation/drafter.h"

namespace moesaic {

class Speculator {
 public:
  // draft_tokens: of every draft, as far as the drafter has guesses, at most kMostDraft.
  Speculator(std::unique_ptr<Drafter> drafter, int draft_tokens)
      : drafter_(std::move(drafter)), draft_tokens_(draft_tokens) {}

  // Sets the drafts of requests that decode and whose tokens are all known, in a step of `rows` rows without
  // drafts. free_rows: most tokens of all drafts together.
  void draft(std::span<Request* const> requests, int rows, int free_rows);
  // Of requests that decode and whose next token is in flight: whether one of them would get a draft if its
  // token were known.
  bool would_draft(std::span<Request* const> requests, int rows);
  // The model has sampled all that it can of a request's draft.
  void verified(Request& request);
  void ended(const Request& request) { drafter_->end(request.id, request.tokens, request.prompt_tokens); }

  const SpeculationStats& stats() const { return stats_; }
  const Drafter& drafter() const { return *drafter_; }

 private:
  std::vector<DraftTask> ask(std::span<Request* const> requests, int most);

  std::unique_ptr<Drafter> drafter_;
  int draft_tokens_;
  SpeculationStats stats_;
};

}  // namespace moesaic
