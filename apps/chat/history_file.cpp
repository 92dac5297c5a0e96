#include "chat/history_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/whole_json.h"

namespace moesaic::chat {
namespace {

namespace fs = std::filesystem;

std::string line_of(std::string_view message) {
  return nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Status write_private(const std::string& path, const std::string& bytes, int flags) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (fd < 0) return error(StatusCode::kNotFound, "{}: cannot write it", path);
  const bool done = fchmod(fd, 0600) == 0 && write(fd, bytes.data(), bytes.size()) == ssize_t(bytes.size());
  close(fd);
  return done ? Status() : error(StatusCode::kNotFound, "{}: cannot write it", path);
}

std::vector<std::string> entries_of(const std::string& bytes) {
  std::vector<std::string> entries;
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) {
    const auto json = parse_whole_json<nlohmann::json>(line);
    if (json.is_string()) entries.push_back(json.get<std::string>());
  }
  return entries;
}

}  // namespace

std::string history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::string(state) + "/moesaic/history";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.local/state/moesaic/history";
  return "";
}

std::vector<std::string> HistoryFile::read() const {
  if (path_.empty()) return {};
  const Result<std::string> bytes = read_whole(path_, kMostBytes);
  if (!bytes.ok()) return {};
  std::vector<std::string> entries = entries_of(bytes.value());
  const bool cut = entries.size() >= 2 * kMostEntries;
  if (entries.size() > kMostEntries) entries.erase(entries.begin(), entries.end() - kMostEntries);
  if (!cut) return entries;
  std::string kept;
  for (const std::string& entry : entries) kept += line_of(entry);
  if (write_private(path_ + ".new", kept, O_TRUNC).ok()) std::rename((path_ + ".new").c_str(), path_.c_str());
  return entries;
}

Status HistoryFile::append(std::string_view message) const {
  if (path_.empty() || message.size() > kMostEntryBytes) return {};
  const fs::path folder = fs::path(path_).parent_path();
  std::error_code code;
  if (fs::create_directories(folder, code)) fs::permissions(folder, fs::perms::owner_all, code);
  const bool too_large = fs::exists(path_, code) && fs::file_size(path_, code) > kMostBytes;
  return write_private(path_, line_of(message), too_large ? O_TRUNC : O_APPEND);
}

}  // namespace moesaic::chat
