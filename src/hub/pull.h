// A model from the hub into the Hugging Face cache.
#pragma once

#include <string>

#include "hub/choose_files.h"
#include "hub/download.h"

namespace moesaic::hub {

// The files that a name would get.
struct PullPlan {
  Listing listing;
  Choice choice;
  int64_t bytes = 0, missing = 0;  // all its files; those that are not here yet
};

// name: as repository_name() has it. usual: as choose_files() has it.
Result<PullPlan> plan_pull(Web& web, const std::string& name, bool usual, const Watch& watch);

// Gets what is missing; the path of the model then: a folder or a GGUF file. Looks first whether there is
// room. Several programs may do so at once.
Result<std::string> pull(Web& web, const PullPlan& plan, const Watch& watch,
                         const std::function<void(const Progress&)>& progress);

}  // namespace moesaic::hub
