// Several backends as one: the ranks, each with its part of the model (core/rank_share.h), on a thread of its
// own. The ops that are given to it are noted, and end_step() has every rank run all of them. What is above
// sees one backend.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/cpu_topology.h"

namespace moesaic {

// Seconds that ranks wait for one of them that does not come. With the second that the others then get to
// end, a step that hangs is an error within ten.
inline constexpr double kRankLimit = 8;
// The same while they load: each reads the model as fast as its disk gives it.
inline constexpr double kRankLoadLimit = 3600;

struct RankManner {
  double limit = kRankLimit;
  // After a step that only some ranks fail the backend is lost: what the others have begun no longer matches.
  bool together = false;
  std::vector<ThreadPlan::Node> nodes = {};  // by rank: where its thread stays; empty: anywhere
};

// ranks: made with the places [0, size) of this exchange. A rank that fails ends the step with its error. One
// that does not come back is lost, and with it the backend: every later step is an error.
std::unique_ptr<Backend> make_parallel_backend(std::vector<std::unique_ptr<Backend>> ranks,
                                               std::shared_ptr<Exchange> exchange,
                                               const RankManner& manner = {});

}  // namespace moesaic
