// How well the drafts of one request have done.
#pragma once

#include <cstdint>
#include <vector>

#include "drafting/acceptance.h"
#include "moesaic/stats.h"

namespace moesaic {

// A draft that is compared with what the model says, whether it was verified in a step or not: acceptance is
// equality, so a drafter that costs nothing is tried for nothing.
struct WatchedDraft {
  std::vector<int32_t> tokens = {};
  int grade = 0;
  int begin = 0;    // position of its first token in the request
  int checked = 0;  // of its tokens, those that were right
  bool is_over() const { return checked == static_cast<int>(tokens.size()); }
};

struct DraftHistory {
  SpeculationStats stats;
  Acceptance acceptance;
  bool begun = false;  // acceptance is of this request
  WatchedDraft watched;
  // Of a costly drafter: steps since the last draft, and after how many a short one is tried: that doubles
  // with each trial until a draft is expected to pay.
  static constexpr int kFirstPatience = 16, kMostPatience = 512;
  int idle = 0, patience = kFirstPatience;
};

}  // namespace moesaic
