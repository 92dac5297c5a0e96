// Any bytes as what a client sends on one connection, through the code that serves connections. The first
// byte chooses options. Of the rest 0xfe is a cut, where the server sees what came before by itself, and
// 0xff, n, c stands for 2^(n mod 18) bytes c. The connection ends, nothing is thrown or left behind, the
// answers are HTTP and no more than the requests, and cuts change nothing.
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "server/session_harness.h"

namespace moesaic::server {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kBudget = 128 << 10;

std::vector<std::string> parts_of(std::string_view input) {
  std::vector<std::string> parts(1);
  for (size_t i = 0, bytes = 0; i < input.size() && bytes < kMostBytes; ++i, ++bytes) {
    if (input[i] == '\xfe') {
      parts.emplace_back();
    } else if (input[i] == '\xff' && i + 2 < input.size()) {
      const size_t times = size_t{1} << (static_cast<unsigned char>(input[i + 1]) % 18);
      parts.back().append(times, input[i + 2]);
      bytes += times;
      i += 2;
    } else {
      parts.back() += input[i];
    }
  }
  return parts;
}

std::unique_ptr<App> app_of(int kind) {
  ServerOptions options{.model_name = "none", .version = "fuzz", .log_requests = false};
  options.limits.header_bytes = 1 << 10;
  options.limits.body_bytes = 64 << 10;
  options.limits.bodies_bytes = kBudget;
  if ((kind & 1) != 0) options.api_keys = {"k"};
  if ((kind & 2) != 0) options.cors_origins = {"http://p"};
  if ((kind & 4) != 0) options.address = "0.0.0.0";
  return app_without_model(options);
}

// The value of a field of an answer's head, which must be there once at most.
std::string_view field(std::string_view head, std::string_view name) {
  const size_t at = head.find(name);
  if (at == std::string_view::npos) return {};
  MOESAIC_CHECK(head.find(name, at + 1) == std::string_view::npos);
  const std::string_view rest = head.substr(at + name.size());
  return rest.substr(0, rest.find('\r'));
}

// Takes one answer off the front; its status.
std::string_view take_answer(std::string_view& bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  MOESAIC_CHECK(end != std::string_view::npos);
  const std::string_view head = bytes.substr(0, end + 2);
  MOESAIC_CHECK(head.starts_with("HTTP/1.1 ") || head.starts_with("HTTP/1.0 "));
  const std::string_view status = head.substr(9, 3);
  MOESAIC_CHECK(head[12] == ' ' && status[0] >= '1' && status[0] <= '5');
  bytes.remove_prefix(end + 4);
  if (status == "100" || status == "204") return status;
  MOESAIC_CHECK(!field(head, "\r\nX-Request-Id: ").empty());
  const std::string_view length = field(head, "\r\nContent-Length: ");
  size_t size = 0;
  MOESAIC_CHECK(std::from_chars(length.data(), length.data() + length.size(), size).ec == std::errc());
  // The answer to HEAD has no body: what follows is the next answer.
  const bool head_only = bytes.size() < size || (size > 0 && bytes.starts_with("HTTP/1."));
  if (!head_only) bytes.remove_prefix(size);
  return status;
}

std::string statuses_of(std::string_view answers) {
  std::string statuses;
  while (!answers.empty()) statuses += take_answer(answers);
  return statuses;
}

size_t count(std::string_view text, std::string_view what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

std::string talk(asio::io_context& io, App& app, const std::vector<std::string>& parts) {
  SessionHarness session(io, app);
  session.start();
  for (const std::string& part : parts) {
    session.feed(part);
    MOESAIC_CHECK(app.metrics.body_bytes <= kBudget);
  }
  session.finish();
  MOESAIC_CHECK(app.metrics.connections == 0 && app.exchanges == 0 && app.metrics.body_bytes == 0);
  MOESAIC_CHECK(app.log.failures() == 0);
  return statuses_of(session.answers());
}

void check(std::string_view input) {
  static asio::io_context io(1);
  static std::array<std::unique_ptr<App>, 8> apps;
  std::unique_ptr<App>& app = apps[input[0] & 7];
  if (app == nullptr) app = app_of(input[0] & 7);
  const std::vector<std::string> parts = parts_of(input.substr(1));
  const std::string statuses = talk(io, *app, parts);
  std::string whole;
  for (const std::string& part : parts) whole += part;
  // Each request has a version; a last one may be refused for what it is, and any may get a 100 before its
  // answer.
  MOESAIC_CHECK(statuses.size() / 3 - count(statuses, "100") <= count(whole, " HTTP/") + 1);
  if (parts.size() > 1 && (input[0] & 8) == 0) MOESAIC_CHECK(talk(io, *app, {whole}) == statuses);
}

}  // namespace
}  // namespace moesaic::server

// Asio keeps memory between runs, for which libFuzzer would look for leaks after each of them.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT: the sanitizer's name

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) moesaic::server::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
