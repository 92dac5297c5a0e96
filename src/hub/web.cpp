#include "hub/web.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iomanip>
#include <locale>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "checkpoint/json.h"
#include "checkpoint/model_places.h"
#include "moesaic/version.h"

namespace moesaic::hub {
namespace {

using Headers = std::map<std::string, std::string>;

constexpr size_t kMostHeaders = size_t{256} << 10;  // bytes of one answer's
constexpr int kMostHops = 10;                       // redirects of one request
constexpr int kMostAttempts = 4;
constexpr long kLeastRate = 1000;  // bytes in a second, below which a connection is made anew

std::string value_of(const Headers& headers, const std::string& name) {
  const auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

// A whole number that begins a text; -1: none.
double number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && value >= 0 ? static_cast<double>(value) : -1;
}

// Seconds until the time that begins a text, as headers write it ("Fri, 27 Nov 2026 18:00:00 GMT"); -1: none.
double seconds_until(const std::string& text) {
  std::tm parts{};
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  if (!(in >> std::get_time(&parts, "%a, %d %b %Y %H:%M:%S"))) return -1;
  return std::max(0.0, std::difftime(timegm(&parts), std::time(nullptr)));
}

// The proxy of HTTP_PROXY, for URLs of http. libcurl takes that variable in small letters only, since a web
// server passes request headers to CGI programs as HTTP_ variables; this program is not one of them.
std::string proxy_for(const std::string& url) {
  return url.starts_with("http://") && environment("http_proxy").empty() ? environment("HTTP_PROXY") : "";
}

// A reason without a proxy's address, which libcurl quotes with its password.
std::string without_proxy(const std::string& reason) {
  if (!reason.starts_with("Unsupported proxy")) return reason;
  return "the proxy's address is not supported: see http_proxy, https_proxy and all_proxy";
}

// Certificates of a company's own proxy, by the variables that others read.
std::string certificates() {
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {
    if (std::string file = environment(name); !file.empty()) return file;
  }
  return {};
}

}  // namespace

std::string Exchange::header(const std::string& name) const { return value_of(headers, name); }

Status Exchange::check_encoding() const {
  const std::string encoding = lower_case(header("content-encoding"));
  if (encoding.empty() || encoding == "identity") return {};
  return error(StatusCode::kUnsupported, "{}: it answers in the encoding '{}', which was not asked for",
               origin_of(url), printable(encoding.substr(0, 40)));
}

void Exchange::Close::operator()(CURL* handle) const { libcurl().value()->easy_cleanup(handle); }
void Exchange::CloseList::operator()(curl_slist* list) const { libcurl().value()->slist_free_all(list); }
void Web::CloseMulti::operator()(CURLM* multi) const { libcurl().value()->multi_cleanup(multi); }

Web::Web(HubOptions options, const Curl* curl)
    : options_(std::move(options)), curl_(curl), multi_(curl->multi_init()) {}

Result<Web> Web::create(HubOptions options) {
  ASSIGN_OR_RETURN(const Curl* curl, libcurl());
  Web web(std::move(options), curl);
  if (web.multi_ == nullptr) return error(StatusCode::kOutOfMemory, "libcurl cannot be started");
  return web;
}

size_t Web::on_header(char* data, size_t size, size_t count, void* user) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, size * count);
  exchange.header_bytes_ += line.size();
  if (exchange.header_bytes_ > kMostHeaders) return 0;
  if (line.starts_with("HTTP/")) exchange.headers.clear();
  if (const size_t colon = line.find(':'); colon != std::string_view::npos)
    exchange.headers[lower_case(line.substr(0, colon))] = trimmed(line.substr(colon + 1), " \t\r\n");
  return line.size();
}

size_t Web::on_body(char* data, size_t size, size_t count, void* user) {
  Exchange& exchange = *static_cast<Exchange*>(user);
  libcurl().value()->easy_getinfo(exchange.handle_.get(), CURLINFO_RESPONSE_CODE, &exchange.status);
  const std::string_view bytes(data, size * count);
  return exchange.body(bytes) ? bytes.size() : 0;
}

void Web::set_up(Exchange& exchange) {
  const Curl& c = *curl_;
  if (exchange.handle_ == nullptr) exchange.handle_.reset(c.easy_init());
  MOESAIC_CHECK(exchange.handle_ != nullptr);
  CURL* handle = exchange.handle_.get();
  c.easy_reset(handle);
  const auto set = [&](CURLoption option, auto value) { c.easy_setopt(handle, option, value); };
  set(CURLOPT_URL, exchange.url.c_str());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // a connection for each request
  set(CURLOPT_USERAGENT,
      fmt::format("moesaic/{}.{}.{}", MOESAIC_VERSION_MAJOR, MOESAIC_VERSION_MINOR, MOESAIC_VERSION_PATCH)
          .c_str());
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.patience));
  set(CURLOPT_LOW_SPEED_LIMIT, kLeastRate);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.patience));
  if (exchange.most_seconds > 0) set(CURLOPT_TIMEOUT, exchange.most_seconds);
  if (!exchange.range.empty()) set(CURLOPT_RANGE, exchange.range.c_str());
  if (const std::string proxy = proxy_for(exchange.url); !proxy.empty()) set(CURLOPT_PROXY, proxy.c_str());
  if (const std::string file = certificates(); !file.empty()) set(CURLOPT_CAINFO, file.c_str());
  exchange.sent_headers_.reset();
  if (!options_.token.empty() && origin_of(exchange.url) == origin_of(options_.endpoint)) {
    exchange.sent_headers_.reset(
        c.slist_append(nullptr, ("Authorization: Bearer " + options_.token).c_str()));
    set(CURLOPT_HTTPHEADER, exchange.sent_headers_.get());
  }
  set(CURLOPT_HEADERFUNCTION, &Web::on_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&exchange));
  set(CURLOPT_WRITEFUNCTION, &Web::on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(exchange.reason_));
  set(CURLOPT_PRIVATE, static_cast<void*>(&exchange));
}

void Web::start(Exchange& exchange) {
  exchange.status = 0;
  exchange.headers.clear();
  exchange.failure.clear();
  exchange.redirect.clear();
  exchange.header_bytes_ = 0;
  exchange.reason_[0] = 0;
  set_up(exchange);
  curl_->multi_add_handle(multi_.get(), exchange.handle_.get());
}

void Web::stop(Exchange& exchange) {
  if (exchange.handle_ != nullptr) curl_->multi_remove_handle(multi_.get(), exchange.handle_.get());
}

std::vector<Exchange*> Web::run(int milliseconds) {
  std::vector<Exchange*> ended;
  int running = 0, left = 0;
  curl_->multi_perform(multi_.get(), &running);
  const auto collect = [&] {
    while (const CURLMsg* message = curl_->multi_info_read(multi_.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      CURL* const handle = message->easy_handle;
      char* user = nullptr;
      curl_->easy_getinfo(handle, CURLINFO_PRIVATE, &user);
      Exchange& exchange = *static_cast<Exchange*>(static_cast<void*>(user));
      curl_->easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &exchange.status);
      char* redirect = nullptr;
      curl_->easy_getinfo(handle, CURLINFO_REDIRECT_URL, &redirect);
      if (redirect != nullptr) exchange.redirect = redirect;
      if (code != CURLE_OK)
        exchange.failure = exchange.header_bytes_ > kMostHeaders ? "its headers do not end"
                           : exchange.reason_[0] != 0            ? without_proxy(exchange.reason_)
                                                                 : curl_->easy_strerror(code);
      if (code == CURLE_PEER_FAILED_VERIFICATION)
        exchange.failure += "; SSL_CERT_FILE names a file of other certificates to trust";
      curl_->multi_remove_handle(multi_.get(), handle);
      ended.push_back(&exchange);
    }
  };
  collect();
  if (!ended.empty()) return ended;
  curl_->multi_poll(multi_.get(), nullptr, 0, milliseconds, nullptr);
  curl_->multi_perform(multi_.get(), &running);
  collect();
  return ended;
}

Status Web::check_redirect(const std::string& from, const std::string& to, int hops) const {
  if (hops > kMostHops)
    return error(StatusCode::kUnsupported, "{}: more than {} redirects, one to another", origin_of(from),
                 kMostHops);
  if (origin_of(to).empty())
    return error(StatusCode::kUnsupported, "{}: it redirects to '{}', which is no address of the web",
                 origin_of(from), to.substr(0, 120));
  if (has_user(to))
    return error(StatusCode::kUnsupported, "{}: it redirects to an address with a user's name",
                 origin_of(from));
  if (lower_case(from).starts_with("https://") && !lower_case(to).starts_with("https://"))
    return error(StatusCode::kUnsupported, "{}: it redirects to {}, which is not encrypted", origin_of(from),
                 origin_of(to));
  return {};
}

Result<Answer> Web::once(const std::string& url, size_t most, const Watch& watch) {
  constexpr int kTurn = 100;  // milliseconds between questions whether to go on
  Answer answer;
  bool too_long = false;
  Exchange exchange;
  exchange.url = url;
  exchange.most_seconds = 4L * options_.patience;
  exchange.body = [&](std::string_view bytes) {
    too_long = answer.body.size() + bytes.size() > most;
    if (!too_long) answer.body.append(bytes);
    return !too_long;
  };
  for (int hops = 0;; ++hops) {
    answer.body.clear();
    start(exchange);
    while (run(kTurn).empty()) {
      if (!watch.cancelled()) continue;
      stop(exchange);
      return Status(StatusCode::kCancelled, "interrupted");
    }
    if (too_long)
      return invalid("{}: an answer of more than {} MB, which is not a list of a model's files",
                     origin_of(exchange.url), most >> 20);
    answer.status = exchange.failure.empty() ? exchange.status : 0;
    if (answer.status == 0)
      return error(StatusCode::kIo, "{}: {}", origin_of(exchange.url), exchange.failure);
    if (exchange.redirect.empty()) break;
    RETURN_IF_ERROR(check_redirect(exchange.url, exchange.redirect, hops + 1));
    exchange.url = exchange.redirect;
  }
  RETURN_IF_ERROR(exchange.check_encoding());
  answer.headers = std::move(exchange.headers);
  return answer;
}

Result<Answer> Web::get(const std::string& url, size_t most, const Watch& watch) {
  for (int attempt = 1;; ++attempt) {
    Result<Answer> answer = once(url, most, watch);
    if (!answer.ok() && answer.status().code() != StatusCode::kIo) return answer;
    const long status = answer.ok() ? answer->status : 0;
    const double wait = seconds_to_wait(answer.ok() ? answer->headers : Headers(), status, attempt);
    if (!may_pass(status) || attempt == kMostAttempts || wait > kLongestWait) return answer;
    if (wait > kShortWait)
      watch.waiting(answer.ok() ? fmt::format("{} answers {}", origin_of(url), status)
                                : answer.status().message());
    if (!rest(wait, watch)) return Status(StatusCode::kCancelled, "interrupted");
  }
}

bool may_pass(long status) {
  constexpr long kPassing[] = {0, 408, 425, 429, 500, 502, 503, 504};
  return std::ranges::find(kPassing, status) != std::end(kPassing);
}

double seconds_to_wait(const Headers& headers, long status, int attempt) {
  constexpr long kTooMany = 429, kUnavailable = 503;
  constexpr double kFirst = 0.2, kMost = 10;
  const double backoff = std::min(kMost, kFirst * std::exp2(attempt - 1));
  if (status != kTooMany && status != kUnavailable) return backoff;
  const std::string after = value_of(headers, "retry-after");
  const double asked = std::max(number_in(after), seconds_until(after));
  if (asked >= 0) return std::max(asked, backoff);
  // "api";r=0;t=55: nothing is left, and the count begins anew in 55 seconds.
  const std::string limit = value_of(headers, "ratelimit");
  const size_t time = limit.find(";t=");
  const double reset = time == std::string::npos ? -1 : number_in(std::string_view(limit).substr(time + 3));
  return std::max(reset, backoff);
}

bool rest(double seconds, const Watch& watch) {
  using Steady = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kStep(50);
  const auto end =
      Steady::now() + std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(seconds));
  while (Steady::now() < end) {
    if (watch.cancelled()) return false;
    std::this_thread::sleep_for(std::min<Steady::duration>(kStep, end - Steady::now()));
  }
  return !watch.cancelled();
}

Status refusal(long status, const Headers& headers, const std::string& what, const HubOptions& options) {
  const std::string code = value_of(headers, "x-error-code"), host = origin_of(options.endpoint);
  const std::string said = value_of(headers, "x-error-message").substr(0, 200);
  const bool known = !options.token.empty();
  if (code == "GatedRepo" || (status == 403 && lower_case(said).find("gated") != std::string::npos))
    return error(StatusCode::kNotFound, "{}: it is gated: accept its terms at {}/{}, then {}{}", what,
                 options.endpoint, what,
                 known ? "try again; HF_TOKEN must be of the account that did"
                       : "set HF_TOKEN to a token of that account, or run: hf auth login",
                 said.empty() ? "" : "; the hub says: " + said);
  if (status == 401 && known && code != "RepoNotFound")
    return error(StatusCode::kNotFound, "{}: {} refuses the token in HF_TOKEN or its file{}", what, host,
                 said.empty() ? "" : ": " + said);
  if (status == 401 || code == "RepoNotFound")
    return error(StatusCode::kNotFound, "{}: {} has no such repository, or it is private{}", what, host,
                 known ? "" : ": check the name; a private one needs HF_TOKEN");
  if (code == "RevisionNotFound")
    return error(StatusCode::kNotFound, "{}: {} has no such branch, tag or commit of it", what, host);
  if (status == 404) return error(StatusCode::kNotFound, "{}: {} has no such repository or file", what, host);
  if (status == 429) {
    const double wait = seconds_to_wait(headers, status, 1);
    return error(StatusCode::kIo, "{}: {} takes no more requests for now; try again in {:.0f} s{}", what,
                 host, std::ceil(wait), known ? "" : ", or set HF_TOKEN, which raises the limit");
  }
  return error(StatusCode::kIo, "{}: {} answers with status {}{}", what, host, status,
               said.empty() ? "" : ": " + said);
}

}  // namespace moesaic::hub
