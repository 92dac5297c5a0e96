// Bounds what drafting costs if it brings nothing: an account of the seconds that it takes and saves.
//
// Estimates can be wrong: a step's cost, how often drafts will be right, the time of the drafter itself. So
// what was spent and what came of it is added up, and drafting rests when the account is empty. It is tried
// again when a small share of all steps' time has filled the account. So over the whole run nothing is lost
// beyond that share and a few steps, however bad the estimates are.
#pragma once

namespace moesaic {

class DraftBudget {
 public:
  // A step took so many seconds, with drafts or without.
  void earn(double step_seconds) { balance_ += kShare * step_seconds; }
  // The drafter, or the rows of drafts in a step, took so many seconds.
  void spend(double seconds) { balance_ -= seconds; }
  // Steps that would have taken so many seconds were not needed, thanks to drafted tokens.
  void save(double seconds) { balance_ += seconds; }
  // Decides whether drafting rests. step_seconds: the time of a step without drafts, as steps are now; 0: it
  // is not known yet, and nothing rests.
  void settle(double step_seconds);
  bool rests() const { return rests_; }

 private:
  static constexpr double kShare = 0.005;
  // In steps: a trial may cost so many, so many are kept of what drafts have saved, and so many owed at most.
  static constexpr double kTrial = 4, kKept = 8, kOwed = 64;
  double balance_ = 0;
  bool rests_ = false;
};

}  // namespace moesaic
