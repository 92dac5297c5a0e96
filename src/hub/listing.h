// Lists the files of a repository of the hub.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_places.h"
#include "hub/web.h"

namespace moesaic::hub {

struct RemoteFile {
  std::string path;  // in the repository; every part of it is a plain name
  int64_t size = 0;
  std::string
      sum;  // SHA-256 of large files (64 digits), git's name of small ones (40): also the name in the cache
};

struct Listing {
  std::string repository;  // owner/name
  std::string revision = std::string(kMainRevision);
  std::string commit = {};  // 40 digits
  std::vector<RemoteFile> files = {};
};

// The files of a revision as it is now.
Result<Listing> list_repository(Web& web, const RepositoryName& name, const Watch& watch);

// Adds the files of one page of the list, as JSON. A path that leads out of the repository, a size or a sum
// that is none, or more files than a model has is an error: such a list is not to be followed in part.
Status add_files(std::string_view json, Listing& listing);
// The commit that a repository's description, as JSON, names.
Result<std::string> commit_of(std::string_view json, const std::string& repository);

// A path with all that is special in URLs as %XX; slashes stay.
std::string url_path(std::string_view path);

}  // namespace moesaic::hub
