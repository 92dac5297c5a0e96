// What the drafts of one request were good for.
#pragma once

#include "moesaic/stats.h"

namespace moesaic {

struct DraftHistory {
  SpeculationStats stats;
};

}  // namespace moesaic
