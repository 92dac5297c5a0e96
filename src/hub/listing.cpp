#include "hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/model_places.h"

namespace moesaic::hub {
namespace {

constexpr size_t kMostPage = size_t{16} << 20;  // bytes of JSON
constexpr int kMostPages = 50;
constexpr size_t kMostFiles = 20000, kMostPath = 1000;
constexpr int64_t kMostSize = int64_t{1} << 50;  // bytes of a file

bool is_sum(const std::string& text) {
  return (text.size() == 40 || text.size() == 64) &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// True if the path leads to no place outside the folder and has no character that steers a terminal.
bool is_plain_path(const std::string& path) {
  constexpr size_t kMostName = 255;
  return path.size() <= kMostPath && stays_inside(path, kMostName) &&
         std::ranges::none_of(path, [](unsigned char c) { return c < ' ' || c == 0x7F; });
}

Result<RemoteFile> file_of(const Json& entry, const std::string& repository) {
  RemoteFile file{.path = string_or(entry, "path", ""), .sum = string_or(entry, "oid", "")};
  if (!is_plain_path(file.path))
    return invalid("{}: its list has a file '{}', whose name is not one of a file in it", repository,
                   printable(file.path.substr(0, 120)));
  const auto large = entry.find("lfs");
  const bool is_large = large != entry.end() && large->is_object();
  if (is_large) file.sum = string_or(*large, "oid", "");
  const Json& sized = is_large ? *large : entry;
  const auto size = sized.find("size");
  if (size == sized.end() || !size->is_number_integer() || *size < 0 || *size > kMostSize)
    return invalid("{}: its list has no possible size of {}", repository, printable(file.path));
  file.size = size->get<int64_t>();
  if (!is_sum(file.sum) || is_large != (file.sum.size() == 64))
    return invalid("{}: its list has no sum of {}", repository, printable(file.path));
  return file;
}

// The page that a Link header calls the next one; empty: none.
std::string next_page(const std::string& links) {
  for (size_t at = links.find('<'); at != std::string::npos; at = links.find('<', at + 1)) {
    const size_t end = links.find('>', at);
    if (end == std::string::npos) return {};
    const std::string parameters = links.substr(end, std::min(links.find(',', end), links.size()) - end);
    if (parameters.find("rel=\"next\"") != std::string::npos) return links.substr(at + 1, end - at - 1);
  }
  return {};
}

}  // namespace

Status add_files(std::string_view json, Listing& listing) {
  ASSIGN_OR_RETURN(const Json list, parse_json(json, listing.repository + ": the hub's list"));
  if (!list.is_array()) return invalid("{}: the hub's list of files is not one", listing.repository);
  for (const Json& entry : list) {
    if (!entry.is_object()) return invalid("{}: the hub's list of files is not one", listing.repository);
    if (string_or(entry, "type", "") != "file") continue;
    ASSIGN_OR_RETURN(RemoteFile file, file_of(entry, listing.repository));
    listing.files.push_back(std::move(file));
    if (listing.files.size() > kMostFiles)
      return invalid("{}: more than {} files, which no model has", listing.repository, kMostFiles);
  }
  return {};
}

Result<std::string> commit_of(std::string_view json, const std::string& repository) {
  ASSIGN_OR_RETURN(const Json info, parse_json(json, repository + ": the hub's answer"));
  const std::string commit = string_or(info, "sha", "");
  if (commit.size() != 40 || !is_sum(commit))
    return invalid("{}: the hub's answer names no commit; is HF_ENDPOINT a hub?", repository);
  return commit;
}

std::string url_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~/").find(c) != std::string_view::npos)
      out.push_back(c);
    else
      out += fmt::format("%{:02X}", byte);
  }
  return out;
}

Result<Listing> list_repository(Web& web, const RepositoryName& name, const Watch& watch) {
  constexpr long kFine = 200;
  const HubOptions& options = web.options();
  const std::string& repository = name.repository;
  Listing listing{.repository = repository};
  if (!name.revision.empty()) listing.revision = name.revision;
  const std::string api = options.endpoint + "/api/models/" + repository;
  ASSIGN_OR_RETURN(const Answer info, web.get(api + "/revision/" + listing.revision, kMostPage, watch));
  if (info.status != kFine) return refusal(info.status, info.headers, repository, options);
  ASSIGN_OR_RETURN(listing.commit, commit_of(info.body, repository));
  std::string url = fmt::format("{}/tree/{}?recursive=true", api, listing.commit);
  for (int page = 0; !url.empty(); ++page) {
    if (page == kMostPages) return invalid("{}: the hub's list of files does not end", repository);
    ASSIGN_OR_RETURN(const Answer answer, web.get(url, kMostPage, watch));
    if (answer.status != kFine) return refusal(answer.status, answer.headers, repository, options);
    RETURN_IF_ERROR(add_files(answer.body, listing));
    const auto links = answer.headers.find("link");
    url = links == answer.headers.end() ? "" : next_page(links->second);
    if (url.starts_with('/')) url.insert(0, origin_of(options.endpoint));
    if (!url.empty()) RETURN_IF_ERROR(web.check_redirect(options.endpoint, url, 0));
  }
  std::unordered_set<std::string> paths;
  for (const RemoteFile& file : listing.files) {
    if (!paths.insert(file.path).second)
      return invalid("{}: its list has {} twice", repository, printable(file.path));
  }
  return listing;
}

}  // namespace moesaic::hub
