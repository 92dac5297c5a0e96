#include "server/request_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "openai/fields.h"

namespace moesaic::server {
namespace {

std::string now() {
  const auto time = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(time)),
                     ms);
}

// The most bytes of text from outside in a line: a line stays below PIPE_BUF whatever is escaped in it, so
// that a pipe with room takes all of it at once.
constexpr size_t kMostText = 512;
constexpr size_t kMostMethod = 32;

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(to - from).count()) / 1000;
}

openai::Json event_of(std::string_view event, std::string_view detail) {
  openai::Json json = {{"time", now()}, {"event", event}};
  if (!detail.empty()) json["detail"] = detail.substr(0, kMostText);
  return json;
}

// In ASCII: what comes from outside has no control characters for a terminal, and no line breaks of Unicode.
std::string text_of(const openai::Json& json) {
  return json.dump(-1, ' ', true, openai::Json::error_handler_t::replace);
}

// Writes to standard error, for a log that is a file. A pipe with room takes PIPE_BUF bytes at once.
void say(std::string_view text) {
  const std::string line = fmt::format("moesaic: {}\n", text.substr(0, PIPE_BUF / 2));
  if (!has_room(STDERR_FILENO)) return;
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

// Nobody waits for a log that is read too slowly.
bool has_room(int file) {
  pollfd wanted{.fd = file, .events = POLLOUT, .revents = 0};
  return poll(&wanted, 1, 0) != 0;
}

RequestLog::~RequestLog() {
  if (takes_notices_) set_notice_sink({});
  if (!path_.empty()) close(file_);
}

Status RequestLog::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  if (file < 0)
    return error(StatusCode::kIo, "--log-file {}: {}; name a file that can be written", path,
                 std::strerror(errno));
  path_ = path;
  file_ = file;
  return {};
}

void RequestLog::take_notices() {
  takes_notices_ = true;
  set_notice_sink([this](const std::string& line) {
    event("notice", line);
    if (!path_.empty()) say(line);  // it may be about the disk that the log is on
  });
}

void RequestLog::write(std::string line) {
  const std::lock_guard lock(mutex_);
  line += '\n';
  if (lost_ > 0)
    line = text_of(event_of("log", fmt::format("{} lines before were lost", lost_))) + "\n" + line;
  if (cut_) line.insert(0, 1, '\n');
  if (!has_room(file_)) return lose(EAGAIN);
  // A write that takes a part does not say why; the next one does.
  size_t done = 0;
  for (ssize_t written = 1; written > 0 && done < line.size(); done += std::max<ssize_t>(written, 0))
    written = ::write(file_, line.data() + done, line.size() - done);
  if (done == line.size()) {
    cut_ = false;
    lost_ = 0;
  } else {
    cut_ = cut_ || done > 0;
    lose(errno);
  }
}

void RequestLog::lose(int reason) {
  if (++lost_ > 1 || path_.empty()) return;
  say(fmt::format("{}: cannot write the log: {}; the server goes on without it until there is room", path_,
                  std::strerror(reason)));
}

void RequestLog::request(const HttpRequest& request, const RequestRecord& r) {
  openai::Json json = {{"time", now()},
                       {"event", "request"},
                       {"id", request.id},
                       {"client", request.client},
                       {"method", request.method.substr(0, kMostMethod)},
                       {"path", request.path.substr(0, kMostText)},
                       {"status", r.status},
                       {"ms", ms_between(r.arrived, std::chrono::steady_clock::now())}};
  if (r.first != std::chrono::steady_clock::time_point()) {
    json["first_token_ms"] = ms_between(r.arrived, r.first);
    json["prompt_tokens"] = r.usage.prompt_tokens;
    json["cached_tokens"] = r.usage.cached_tokens;
    json["generated_tokens"] = r.usage.generated_tokens;
  }
  if (r.cut_off) json["cut_off"] = true;
  write(text_of(json));
}

void RequestLog::event(std::string_view event, std::string_view detail) {
  write(text_of(event_of(event, detail)));
}

void RequestLog::failure(std::string_view what) noexcept {
  ++failures_;
  try {
    event("error", what);
  } catch (const std::exception&) {  // no memory for the line either
  }
}

void RequestLog::exception() noexcept {
  try {
    throw;
  } catch (const std::exception& e) {
    failure(e.what());
  } catch (...) {
    failure("an exception of unknown type");
  }
}

}  // namespace moesaic::server
