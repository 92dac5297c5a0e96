// Speculative decoding: the speculator gets drafts for the requests of a step.
//
// A step computes a request's last token and its draft as consecutive rows, and every row gives the logits of
// the token behind it. The request's own sampler takes the rows in order, with the random number, penalties
// and grammar of each step. The first row samples what would have been sampled without a draft. If that is
// the draft's first token the second row is the one that the next step would have computed, and so on; the
// rows behind the first difference are dropped. So the tokens are those without drafts, whatever the sampling
// parameters.
//
// The length of a draft is decided at each step (drafting/draft_length.h) from what steps of each size
// take and how often the request's drafts were right, both measured while they run. An account is kept of
// what drafts cost and save (drafting/draft_budget.h): if they cost more, drafting rests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "drafting/draft_budget.h"
#include "drafting/drafter.h"
#include "drafting/step_costs.h"
#include "engine/request.h"

namespace moesaic {

enum class StepKind {
  kPlain,    // it has no drafts; a device that samples had it before the step before was done
  kStopped,  // it has none, but was launched only when the tokens of the step before were known
  kDrafted,
};

// A draft that was begun behind a step.
struct BegunDraft {
  struct Part {
    std::shared_ptr<Request> request;
    int tokens = 0;
  };
  int64_t begun = 0;  // the drafter's number of it
  int rows = 0;       // rows of the step
  std::vector<Part> parts;
};

// The expected cost of a step, until it is measured.
struct StepAccount {
  int rows = 0;      // rows without its drafts
  int drafted = 0;   // rows of drafts
  double spent = 0;  // seconds for these
};

class Speculator {
 public:
  // draft_tokens: length of every draft, as far as the drafter has guesses, at most kMostDraft; 0: as many as
  // pay.
  Speculator(std::unique_ptr<Drafter> drafter, int draft_tokens)
      : drafter_(std::move(drafter)), draft_tokens_(draft_tokens) {}

  // Gives a request pages for a draft of so many tokens behind its last one, and says for how many it has.
  // first: the position of its next row, at least.
  using Reserve = std::function<int(Request& request, int first, int tokens)>;
  // The next step, before drafts are added to it.
  struct NextStep {
    int rows = 0;
    int free_rows = 0;   // most tokens of all drafts together
    int continued = 0;   // requests that verify a draft whose tokens the host does not know
    int ahead_rows = 0;  // tokens of those drafts; `rows` does not count them
  };
  // Proposes drafts for requests that decode and whose tokens are all known. Call it before each step, even
  // if there are none.
  StepAccount draft(std::span<Request* const> requests, const NextStep& step, const Reserve& reserve);
  // Begins a draft behind a step that was just launched, where the drafter can, and takes in its rows.
  // Nothing: none was begun. requests: of each sequence; free_rows: of the step behind it.
  std::optional<BegunDraft> draft_ahead(const Batch& step, std::span<const std::shared_ptr<Request>> requests,
                                        int free_rows, const Reserve& reserve);
  // Call it when the step's tokens are taken: its draft goes to the requests. Returns the seconds that it
  // took.
  Result<double> take(const BegunDraft& draft);
  // requests: those that decode and whose next token is in flight, in a step of `rows` rows. True if one of
  // them would get a draft if its token were known.
  bool would_draft(std::span<Request* const> requests, int rows, int free_rows);
  // The model has sampled all that it can of a request's draft, which had at least one token.
  void verified(Request& request, const DraftState::Verified& draft);
  void computed(std::span<const ComputedRows> rows, bool begun);
  void yielded(const Request& request) { drafter_->yielded(request.id); }
  void ended(Request& request);
  // A step took so many seconds, without those for drafting. rows: of a step that computed one token of each
  // of its requests, and drafts; else 0.
  void measured(const StepAccount& account, int rows, StepKind kind, double seconds);
  // Pages of the full-attention layers were loaded from elsewhere.
  void loaded(std::span<const int32_t> full_pages) { drafter_->loaded(full_pages); }
  // True if the next step may only be launched when it is known which rows of this one hold.
  bool follows_steps() const { return drafter_->follows_steps() && !rests_; }
  // Seconds spent in the last draft().
  double drafting_seconds() const { return drafting_seconds_; }

  const SpeculationStats& stats() const { return stats_; }
  const Drafter& drafter() const { return *drafter_; }

 private:
  std::vector<DraftTask> ask(std::span<Request* const> requests, std::span<const int> most);
  // rows: how many it took in. known: the time of a token follows from these seconds.
  void measure_drafter(int rows, size_t tokens, bool known, double seconds);
  static void watch(Request& request, std::span<const int32_t> draft, int grade);
  // Pays for the rows of drafts in the next step, which has `rows` rows without them.
  StepAccount spend_rows(int rows, int drafted);
  void fail_once(const Status& status);
  // Decides whether drafting rests from the next step on.
  void settle(int requests);
  void spend_work(int amount, double seconds);
  void measured_stop(int rows, double seconds);
  // Adds a short draft now and then if none pays, so that a costly drafter is found useful again.
  void add_probes(std::span<Request* const> requests, int rows, int free_rows,
                  std::vector<int>& lengths) const;
  // True while drafts are tried at once, as there was a rest before.
  bool is_trial() const;
  // True if a draft would pay if all of it were right, as far as that is known.
  bool may_pay(int rows, int free_rows) const;
  static void count_probes(std::span<Request* const> requests, std::span<const int> lengths);
  void follow(Request& request);
  // Returns the tokens of all drafts.
  int draft_now(std::span<Request* const> requests, int rows, int free_rows, const Reserve& reserve);
  int take_guesses(std::span<Request* const> requests, int free_rows, const Reserve& reserve) const;
  // Returns how many tokens each draft may have before the drafter is asked.
  std::vector<int> ask_for(std::span<Request* const> requests, int rows, int free_rows) const;
  // Returns the same with trials, and counts them as asked.
  std::vector<int> lengths_of(std::span<Request* const> requests, int rows, int free_rows);
  std::vector<int> choose(std::span<const std::vector<double>> reach, int rows, int free_rows) const;

  std::unique_ptr<Drafter> drafter_;
  int draft_tokens_;
  SpeculationStats stats_;
  Acceptance all_;             // over all requests
  StepCosts plain_, drafted_;  // costs of steps without drafts and with them
  // The drafter's time beside that for tokens: a head's by the rows that it takes in, that of one that costs
  // little by the requests that it is asked for.
  StepCosts work_;
  double token_seconds_ = 0;  // time that a costly drafter takes for a token
  double drafting_seconds_ = 0;
  int computed_rows_ = 0;  // rows of the last step that hold
  DraftBudget budget_;
  bool rests_ = false;   // drafting rests in the next step
  int trial_ = 0;        // drafts since the last rest; less than 0: steps until they begin
  int rows_ = 0;         // rows of the last step without its drafts
  size_t turn_ = 0;      // the request, by its place, that gets a longer draft first where rows are few
  bool begun_ = false;   // a draft was begun behind the step that was launched last
  bool failed_ = false;  // the drafter has failed, and that was logged
};

}  // namespace moesaic
