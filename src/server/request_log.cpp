#include "server/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>

#include "openai/fields.h"
#include "openai/sse.h"

namespace moesaic::server {
namespace {

std::string now() {
  const auto time = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(time)),
                     ms);
}

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(to - from).count()) / 1000;
}

void write(const openai::Json& json) {
  const std::string line = openai::dump(json) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void log_request(const HttpRequest& request, const RequestRecord& r) {
  openai::Json json = {{"time", now()},
                       {"event", "request"},
                       {"id", request.id},
                       {"client", request.client},
                       {"method", request.method},
                       {"path", request.path},
                       {"status", r.status},
                       {"ms", ms_between(r.arrived, std::chrono::steady_clock::now())}};
  if (r.first != std::chrono::steady_clock::time_point()) {
    json["first_token_ms"] = ms_between(r.arrived, r.first);
    json["prompt_tokens"] = r.usage.prompt_tokens;
    json["cached_tokens"] = r.usage.cached_tokens;
    json["generated_tokens"] = r.usage.generated_tokens;
  }
  write(json);
}

void log_event(std::string_view event, std::string_view detail) {
  openai::Json json = {{"time", now()}, {"event", event}};
  if (!detail.empty()) json["detail"] = detail;
  write(json);
}

}  // namespace moesaic::server
