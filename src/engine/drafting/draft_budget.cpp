#include "drafting/draft_budget.h"

#include <algorithm>

namespace moesaic {

void DraftBudget::settle(double step_seconds) {
  if (!(step_seconds > 0)) return;
  // A loss before a rest is paid back in full, but a single stall of the machine is not paid for ever.
  balance_ = std::clamp(balance_, -kOwed * step_seconds, kKept * step_seconds);
  rests_ = balance_ < (rests_ ? 0 : -kTrial * step_seconds);
}

}  // namespace moesaic
