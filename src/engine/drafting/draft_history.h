// The record of one request's drafts: how many of their tokens were right.
#pragma once

#include <cstdint>
#include <vector>

#include "drafting/acceptance.h"
#include "moesaic/stats.h"

namespace moesaic {

// A draft is compared with what the model says, whether it was verified in a step or not: acceptance is
// equality, so trying a drafter that costs nothing is for free.
struct WatchedDraft {
  std::vector<int32_t> tokens = {};
  int grade = 0;
  int begin = 0;    // position of its first token in the request
  int checked = 0;  // its first tokens that have come; all were right
  bool is_over() const { return checked == static_cast<int>(tokens.size()); }
};

struct DraftHistory {
  SpeculationStats stats;
  Acceptance acceptance;
  bool begun = false;  // `acceptance` has begun with that of others
  WatchedDraft watched;
  // For a costly drafter: the steps since the last draft, and the number of them after which a short one is
  // tried. That doubles with each trial until a draft is expected to pay.
  static constexpr int kFirstPatience = 16, kMostPatience = 512;
  int idle = 0, patience = kFirstPatience;
};

}  // namespace moesaic
