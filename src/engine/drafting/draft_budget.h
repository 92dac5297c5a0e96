// What drafting may cost where it brings nothing: an account of the seconds that it takes and saves.
//
// Estimates can be wrong: of a step's cost, of how often drafts will be right, of what the drafter itself
// takes. So what was spent and what came of it is added up, and drafting rests when the account is empty. It
// is tried again when a small share of all steps' time has filled the account. So over the whole run nothing
// is lost beyond that share and a few steps, whatever the estimates are worth.
#pragma once

namespace moesaic {

class DraftBudget {
 public:
  // A step took so long, with drafts or without.
  void earn(double step_seconds) { balance_ += kShare * step_seconds; }
  // By the drafter, or by the rows of drafts in a step.
  void spend(double seconds) { balance_ -= seconds; }
  // By steps that tokens of drafts made needless.
  void save(double seconds) { balance_ += seconds; }
  // step_seconds: of a step without drafts, as they are now; 0: not known yet, nothing rests.
  void settle(double step_seconds);
  bool rests() const { return rests_; }

 private:
  static constexpr double kShare = 0.005;
  // In steps: what a trial may cost, what is kept of what drafts have saved, and what is owed at most.
  static constexpr double kTrial = 4, kKept = 8, kOwed = 64;
  double balance_ = 0;
  bool rests_ = false;
};

}  // namespace moesaic
