#include "hub/pull.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/model_list.h"

namespace moesaic::hub {

Result<PullPlan> plan_pull(Web& web, const std::string& name, bool usual, const Watch& watch) {
  const auto parsed = repository_name(name);
  if (!parsed) {
    const std::string meant = published(name);
    return error(StatusCode::kUsage,
                 "'{}' is no model of the hub; expected OWNER/NAME, behind it @REVISION, :QUANTISATION or "
                 "/FILE.gguf, or "
                 "their address{}",
                 name, meant.empty() ? "" : "; did you mean " + meant + "?");
  }
  if (web.options().offline)
    return error(StatusCode::kNotFound, "{}: HF_HUB_OFFLINE is set, so nothing is fetched", name);
  PullPlan plan;
  ASSIGN_OR_RETURN(plan.listing, list_repository(web, *parsed, watch));
  ASSIGN_OR_RETURN(plan.choice, choose_files(plan.listing, *parsed, usual));
  const RepositoryCache cache(web.options().cache, parsed->repository);
  for (const RemoteFile& file : plan.choice.files) {
    constexpr int64_t kMost = int64_t{1} << 60;
    if (plan.bytes > kMost - file.size) return invalid("{}: its files have impossible sizes", name);
    plan.bytes += file.size;
    plan.missing += file.size - cache.bytes_there(file, plan.listing.commit);
  }
  return plan;
}

Result<std::string> pull(Web& web, const PullPlan& plan, const Watch& watch,
                         const std::function<void(const Progress&)>& progress) {
  const Listing& listing = plan.listing;
  const RepositoryCache cache(web.options().cache, listing.repository);
  const auto there = [&](const RemoteFile& file) { return cache.is_linked(file, listing.commit); };
  // Nothing is written where all files are there, since the cache may be read-only; a commit needs no ref
  // then.
  const bool all_there = std::ranges::all_of(plan.choice.files, there);
  if (!all_there) {
    RETURN_IF_ERROR(cache.check_room(plan.missing));
    RETURN_IF_ERROR(cache.make(listing.commit));
    RETURN_IF_ERROR(
        download(web, cache, listing.repository, listing.commit, plan.choice.files, watch, progress));
  }
  if (!all_there || listing.revision != listing.commit)
    RETURN_IF_ERROR(cache.set_current(listing.revision, listing.commit));
  const std::string folder = cache.snapshot(listing.commit);
  return plan.choice.opens.empty() ? folder : folder + "/" + plan.choice.opens;
}

}  // namespace moesaic::hub
