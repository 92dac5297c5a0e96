// bench-serve: what a server gives its clients: throughput, time to first token (TTFT), time per output token
// after it (TPOT) and time between events (ITL). An event may hold several tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/strings.h"
#include "chat/terminal.h"
#include "chat/terminal_text.h"
#include "commands.h"
#include "load_client.h"
#include "model_options.h"
#include "option_checks.h"
#include "print_json.h"
#include "text/utf8.h"

namespace moesaic::app {
namespace {

struct BenchServeOptions {
  LoadOptions load;
  std::vector<int> streams = {1, 8, 32};
  std::string format = "text";
  int prompt_words = 32, requests = 0;
  bool check = false;
};

constexpr int kCheckedPrompts = 64;
// At least how many requests a stream makes where the command line does not say.
constexpr int kRequestsPerStream = 4;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Without values all are kNone, null in JSON.
struct Percentiles {
  double p50 = kNone, p90 = kNone, p99 = kNone, most = kNone;
};

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {at(0.5), at(0.9), at(0.99), values.back()};
}

struct Report {
  double streams = 0, seconds = 0, tokens_per_second = 0;
  int requests = 0, failed = 0;
  int by_events = 0;  // answers that did not fail, without a usage that can be true
  int64_t tokens = 0;
  std::string error;
  Percentiles first, per_token, between, whole;  // milliseconds
};

// An event with text holds a token at least. Tokens beyond those that were asked for show as text, a byte
// each at least: without this bound a server could claim any speed.
bool usage_can_be_true(const Timeline& t, int asked) {
  return t.complete && !t.events.empty() && t.usage >= t.events.size() &&
         t.usage <= static_cast<uint64_t>(asked) + t.text.size();
}

Report report_on(double streams, const LoadResult& result, int asked) {
  Report r{
      .streams = streams, .seconds = result.seconds, .requests = static_cast<int>(result.requests.size())};
  std::vector<double> first, per_token, between, whole;
  for (const Timeline& t : result.requests) {
    const bool by_usage = usage_can_be_true(t, asked);
    const auto tokens = static_cast<int64_t>(by_usage ? t.usage : t.events.size());
    r.tokens += tokens;
    if (!t.ok || t.events.empty()) {
      ++r.failed;
      r.error = t.error.empty() ? "no text" : t.error;
      continue;
    }
    if (!by_usage) ++r.by_events;
    const double begin = t.events.front(), end = t.events.back();
    first.push_back(1e3 * (begin - t.start));
    whole.push_back(1e3 * (end - t.start));
    // Events that came at one time do not tell how long their tokens took.
    if (end > begin) per_token.push_back(1e3 * (end - begin) / static_cast<double>(tokens - 1));
    for (size_t i = 1; i < t.events.size(); ++i) between.push_back(1e3 * (t.events[i] - t.events[i - 1]));
  }
  r.tokens_per_second = static_cast<double>(r.tokens) / result.seconds;
  r.first = percentiles(first), r.per_token = percentiles(per_token);
  r.between = percentiles(between), r.whole = percentiles(whole);
  return r;
}

nlohmann::ordered_json json_of(const Percentiles& p) {
  return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.most}};
}

nlohmann::ordered_json json_of(const Report& r, bool open) {
  nlohmann::ordered_json json = {{open ? "requests_per_second" : "streams", r.streams},
                                 {"requests", r.requests},
                                 {"failed", r.failed},
                                 {"seconds", r.seconds},
                                 {"tokens", r.tokens},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"counted_by_events", r.by_events},
                                 {"time_to_first_token_ms", json_of(r.first)},
                                 {"time_per_output_token_ms", json_of(r.per_token)},
                                 {"inter_token_ms", json_of(r.between)},
                                 {"end_to_end_ms", json_of(r.whole)}};
  if (r.failed > 0) json["error"] = r.error;
  return json;
}

void print_heading(bool open) {
  fmt::print("{:>35} {:>19} {:>19} {:>29}\n", "", "TTFT, ms", "TPOT, ms", "between events (ITL), ms");
  fmt::print("{:>8} {:>8} {:>6} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
             open ? "req/s" : "streams", "requests", "failed", "tok/s", "p50", "p99", "p50", "p99", "p50",
             "p99", "max");
}

std::string cell(double value, int digits) {
  return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, digits);
}

void print(const Report& r) {
  fmt::print("{:>8g} {:>8} {:>6} {:>10.1f} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", r.streams,
             r.requests, r.failed, r.tokens_per_second, cell(r.first.p50, 1), cell(r.first.p99, 1),
             cell(r.per_token.p50, 2), cell(r.per_token.p99, 2), cell(r.between.p50, 2),
             cell(r.between.p99, 2), cell(r.between.most, 2), chat::printable(r.error));
  std::fflush(stdout);
}

void print_note(int by_events) {
  if (by_events == 0) return;
  chat::notice(fmt::format(
      "bench-serve: note: {} answers came without a usage that can be true: an event counts as one "
      "token there, so tok/s may be too low and TPOT too high",
      by_events));
}

// Different for each request of each run, so that no prompt, nor its beginning, is in a server's prefix
// cache.
std::string make_prompt(int words, int i, uint32_t run) {
  std::string prompt = fmt::format("{}, {}.", run, i + 1);
  for (int w = 0; w < words; ++w) prompt += fmt::format(" {}", (w * int64_t{7} + i) % 10);
  return prompt;
}

// The host may be an IPv6 address in brackets. Without a port it is 80.
Status read_url(const std::string& url, LoadOptions& load) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t slash = std::min(url.find('/', begin), url.size());
  const std::string place = url.substr(begin, slash - begin), path = url.substr(slash);
  const bool bracket = place.starts_with('[');
  const size_t end = std::min(place.find(bracket ? ']' : ':'), place.size());
  const std::string rest = place.substr(std::min(place.size(), end + (bracket ? 1 : 0)));
  const int port = rest.empty() ? 80 : rest[0] == ':' ? number_of<int>(rest.substr(1)).value_or(0) : 0;
  load.host = place.substr(bracket ? 1 : 0, end - (bracket ? 1 : 0));
  load.port = std::to_string(port);
  const bool http = scheme == std::string::npos || url.starts_with("http://");
  if (!http || load.host.empty() || (bracket && end == place.size()) || port < 1 || port > 65535)
    return usage(invalid("--url: '{}' is not of the form http://HOST:PORT", url));
  if (!path.empty() && path != "/" && path != "/v1" && path != "/v1/")
    return usage(invalid("--url: '{}' has a path; requests go to http://HOST:PORT/v1/completions", url));
  return {};
}

// Requests that did not say what the same prompt's only request said; their error is set.
void compare(const LoadResult& alone, LoadResult& result) {
  for (Timeline& t : result.requests) {
    const Timeline& other = alone.requests[t.prompt];
    if (!t.ok || (other.ok && t.text == other.text)) continue;
    t.ok = false;
    t.error = other.ok ? "another answer than alone" : "without load: " + other.error;
  }
}

// A header's value, and a member of a JSON object.
Status check_words(const LoadOptions& o) {
  if (std::ranges::any_of(o.key, [](unsigned char c) { return c < ' ' || c == 127; }))
    return usage(invalid("--key: there is a control character in it"));
  if (utf8_valid_prefix(o.model) != o.model.size()) return usage(invalid("--model: the name is not UTF-8"));
  return {};
}

Status run_bench_serve(BenchServeOptions o) {
  const bool open = o.load.rate > 0;
  if (open) o.streams = {0};
  JsonArray runs(o.format == "json");
  if (o.format == "text") print_heading(open);
  int failed = 0, by_events = 0;
  std::random_device random;
  uint32_t run = random();
  o.load.prompt = [&run, words = o.prompt_words](int i) { return make_prompt(words, i, run); };
  LoadResult alone;
  if (o.check) {
    o.load.prompts = kCheckedPrompts;
    LoadOptions one = o.load;
    one.rate = one.seconds = 0, one.streams = 1, one.requests = kCheckedPrompts;
    ASSIGN_OR_RETURN(alone, run_load(one));
  }
  for (const int streams : o.streams) {
    o.load.streams = streams;
    o.load.requests = o.requests > 0 ? o.requests : std::max(16, kRequestsPerStream * streams);
    if (!o.check) run = random();
    ASSIGN_OR_RETURN(LoadResult result, run_load(o.load));
    if (o.check) compare(alone, result);
    const Report report = report_on(open ? o.load.rate : streams, result, o.load.max_tokens);
    failed += report.failed, by_events += report.by_events;
    if (o.format == "text") print(report);
    runs.add(json_of(report, open));
  }
  print_note(by_events);
  return failed == 0 ? Status() : error(StatusCode::kInternal, "{} requests failed", failed);
}

}  // namespace

Run add_bench_serve(CLI::App& app) {
  auto o = std::make_shared<BenchServeOptions>();
  auto url = std::make_shared<std::string>("http://127.0.0.1:8080");
  CLI::App& c = *app.add_subcommand(
      "bench-serve",
      "Load-test a running server, moesaic's or another with OpenAI's completions: throughput and latencies");
  c.add_option("--url", *url, "http://HOST:PORT");
  c.add_option("--key", o->load.key, "API key");
  c.add_option("--model", o->load.model, "model to ask for; empty: whatever the server has");
  CLI::Option* streams =
      c.add_option("--streams", o->streams, "requests at a time (closed loop), one run for each number")
          ->delimiter(',')
          ->check(in_range(1, 10000));
  CLI::Option* rate =
      c.add_option("--rate", o->load.rate, "requests a second at random times (open loop) instead")
          ->excludes(streams)
          ->check(in_range(0.001, 1e6))
          ->default_str("");
  CLI::Option* requests =
      c.add_option("--requests", o->requests, "requests of a run; 0: 4 for each stream, at least 16")
          ->check(in_range(0, 10'000'000));
  c.add_option("--seconds", o->load.seconds,
               "run for this long instead of a number of requests (closed loop)")
      ->excludes(rate)
      ->excludes(requests)
      ->check(in_range(0.1, 1e6))
      ->default_str("");
  c.add_option("-p,--prompt-words", o->prompt_words, "words of a prompt, one or two tokens each")
      ->check(in_range(0, 1'000'000));
  c.add_option("-n,--max-tokens", o->load.max_tokens, "tokens of each answer")->check(in_range(1, 1'000'000));
  c.add_option("--timeout", o->load.timeout,
               "seconds without a byte from the server after which a request has failed")
      ->check(in_range(0.1, 1e6));
  c.add_flag("--check", o->check,
             "send 64 prompts repeatedly and compare each answer with the one given without load");
  c.add_option("-o,--output", o->format, "text or json")->check(one_of({"text", "json"}));
  c.footer("Example:\n  moesaic bench-serve --url http://127.0.0.1:8080 --streams 1,8,32,128 -n 256");
  return [o, url]() -> Status {
    RETURN_IF_ERROR(read_url(*url, o->load));
    RETURN_IF_ERROR(check_words(o->load));
    return run_bench_serve(*o);
  };
}

}  // namespace moesaic::app
