// A line of JSON for each request and event, on standard error or in a file.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "moesaic/status.h"
#include "server/http.h"

namespace moesaic::server {

// True if a line can be written to the file without waiting for whoever reads it.
bool has_room(int file);

// Any thread may use it once it is open. A line that cannot be written (full disk, closed pipe) is lost; the
// request is not. If the log is a file, standard error reports that once for each series of lost lines.
class RequestLog {
 public:
  RequestLog() = default;  // on standard error
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  Status open(const std::string& path);  // appends
  // Lines of notice() become events of this log until it is destroyed, so that no thread waits for a reader.
  // Where the log is a file, they are on standard error too.
  void take_notices();
  void request(const HttpRequest& request, const RequestRecord& record);
  void event(std::string_view event, std::string_view detail = {});
  // Logs an event "error". For places that must not throw.
  void failure(std::string_view what) noexcept;
  // The same of the exception that is being handled.
  void exception() noexcept;
  int file() const { return file_; }
  uint64_t failures() const { return failures_; }  // so far

 private:
  void write(std::string line);
  void lose(int reason);

  bool takes_notices_ = false;
  std::string path_;  // empty: standard error
  int file_ = 2;
  std::atomic<uint64_t> failures_ = 0;
  std::mutex mutex_;  // guards the members below
  bool cut_ = false;  // the file ends within a line
  uint64_t lost_ = 0;
};

}  // namespace moesaic::server
