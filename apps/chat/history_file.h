// The user's messages of earlier conversations, in a file that only the user can read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moesaic/status.h"

namespace moesaic::chat {

// XDG_STATE_HOME/moesaic/history or ~/.local/state/moesaic/history; empty where neither is known.
std::string history_path();

// A JSON string on each line, so that a message may have any number of lines itself. Several programs may
// append at a time. An empty path: nothing is read or kept.
class HistoryFile {
 public:
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}

  // The newest kMostEntries, oldest first. A line that is no JSON string is passed over; a file that has
  // grown to twice as many is cut to these.
  std::vector<std::string> read() const;
  // Makes the folder (0700) and the file (0600) where they are missing. A message of more than
  // kMostEntryBytes is not kept; a file of more than kMostBytes, which read() does not take, is begun anew.
  Status append(std::string_view message) const;

  static constexpr size_t kMostEntries = 1000, kMostEntryBytes = 32 << 10, kMostBytes = 64 << 20;

 private:
  std::string path_;
};

}  // namespace moesaic::chat
