// Files of a repository into the cache, over several connections at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache_files.h"

namespace moesaic::hub {

struct Progress {
  int64_t done = 0, total = 0;  // bytes; what was there before is done
};

// Every file is fetched in parts; a part that comes early waits in memory, so that files grow from their
// beginning. A connection that breaks, stalls or is refused for a while goes on where it was; a wrong sum is
// fetched anew once. Where it ends early, for whatever reason, what is there can be gone on with.
Status download(Web& web, const RepositoryCache& cache, const std::string& repository,
                const std::string& commit, const std::vector<RemoteFile>& files, const Watch& watch,
                const std::function<void(const Progress&)>& progress);

}  // namespace moesaic::hub
