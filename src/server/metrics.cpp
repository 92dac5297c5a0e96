#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/kv_page.h"
#include "text/utf8.h"

namespace moesaic::server {
namespace {

const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                                0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
const std::vector<double> kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                                           0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5,   10};
const std::vector<double> kRequestSeconds = {0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,  2.5,
                                             5,    10,  15,  20,  30,  40, 50,  60, 120};
const std::vector<double> kLengths = {1,   2,    5,    10,   20,    50,    100,   200,
                                      500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

// Escapes a label's value. Prometheus rejects the whole page if one is not UTF-8.
std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : utf8_lossy(value)) {
    if (c == '\\' || c == '"' || c == '\n') text += '\\';
    text += c == '\n' ? 'n' : c;
  }
  return text;
}

void head(const char* name, const char* type, const char* help, std::string& text) {
  text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <typename T>
void write_value(const char* name, const char* type, const char* help, const std::string& labels, T value,
                 std::string& text) {
  head(name, type, help, text);
  text += fmt::format("{}{{{}}} {}\n", name, labels, value);
}

void add_double(std::atomic<double>& sum, double value) {
  double before = sum.load(std::memory_order_relaxed);
  while (!sum.compare_exchange_weak(before, before + value, std::memory_order_relaxed)) {
  }
}

// 0 where the system does not tell.
uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

double share(const PageUse& pages) {
  return pages.total > 0 ? static_cast<double>(pages.used) / pages.total : 0;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  add_double(sum_, value);
}

void Histogram::write(const std::string& name, const std::string& labels, std::string& text) const {
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    text += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, total);
  }
  text += fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_.load(), name, labels, total);
}

Metrics::Metrics(const std::string& model_name)
    : time_to_first_token(kFirstTokenSeconds),
      inter_token(kTokenSeconds),
      end_to_end(kRequestSeconds),
      prepare_time(kFirstTokenSeconds),
      queue_time(kRequestSeconds),
      prompt_length(kLengths),
      generation_length(kLengths),
      labels_(fmt::format("model_name=\"{}\"", escaped(model_name))) {}

void Metrics::count_request(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
}

void Metrics::write_speculation(const SpeculationStats& s, std::string& text) const {
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    write_value(name, "counter", help, labels_, value, text);
  };
  counter("vllm:spec_decode_num_drafts_total", "Drafts that steps verified.", s.drafts);
  counter("vllm:spec_decode_num_draft_tokens_total", "Their tokens.", s.drafted);
  counter("vllm:spec_decode_num_accepted_tokens_total", "Of these, the ones that the model sampled too.",
          s.accepted);
  constexpr const char* kByPosition = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  head(kByPosition, "counter", "The same by their place in the draft.", text);
  for (size_t i = 0; i < s.accepted_at.size(); ++i)
    text += fmt::format("{}{{{},position=\"{}\"}} {}\n", kByPosition, labels_, i, s.accepted_at[i]);
}

// Metrics for routers and dashboards that were written for earlier vLLM, and the pages as blocks.
void Metrics::write_for_routers(const EngineStats& e, std::string& text) const {
  const auto one = [&](const char* name, const char* type, auto value) {
    write_value(name, type, "The same without gpu_, by its earlier name.", labels_, value, text);
  };
  one("vllm:gpu_cache_usage_perc", "gauge", share(e.full));
  one("vllm:gpu_prefix_cache_queries_total", "counter", e.prefix_queried);
  one("vllm:gpu_prefix_cache_hits_total", "counter", e.prefix_hits);
  head("vllm:cache_config_info", "gauge", "Tokens of a page, and pages of the layers with full attention.",
       text);
  text += fmt::format("vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1\n", labels_,
                      kPageTokens, e.full.total);
}

void Metrics::write_store(const KvStoreStats& s, std::string& text) const {
  const auto by_tier = [&](const char* name, const char* type, const char* help, uint64_t host,
                           uint64_t disk) {
    head(name, type, help, text);
    text += fmt::format("{0}{{{1},tier=\"host\"}} {2}\n{0}{{{1},tier=\"disk\"}} {3}\n", name, labels_, host,
                        disk);
  };
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    write_value(name, "counter", help, labels_, value, text);
  };
  by_tier("moesaic:kv_store_bytes", "gauge", "Bytes of blocks that are kept beyond their pages.",
          s.host.bytes, s.disk.bytes);
  by_tier("moesaic:kv_store_read_bytes_total", "counter", "Bytes of these that came back for a prompt.",
          s.host.read_bytes, s.disk.read_bytes);
  by_tier("moesaic:kv_store_written_bytes_total", "counter", "Bytes that were kept.", s.host.written_bytes,
          s.disk.written_bytes);
  by_tier("moesaic:kv_store_dropped_total", "counter", "Parts of blocks that were not kept.", s.host.dropped,
          s.disk.dropped);
  counter("moesaic:kv_store_damaged_total", "Files that were not what was written.", s.disk.damaged);
  counter("moesaic:kv_store_fetched_tokens_total",
          "Prompt tokens that were not computed because blocks came back.", s.fetched_tokens);
  counter("moesaic:kv_store_abandoned_total", "Prompts that were computed because too little came back.",
          s.abandoned);
}

std::string Metrics::text(const Gauges& g) const {
  std::string text;
  const auto one = [&](const char* name, const char* type, const char* help, auto value) {
    write_value(name, type, help, labels_, value, text);
  };
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    head(name, "histogram", help, text);
    values.write(name, labels_, text);
  };
  const EngineStats& e = g.engine;
  one("vllm:num_requests_running", "gauge", "Generations at work.", e.running);
  one("vllm:num_requests_waiting", "gauge", "Generations that wait for their turn.", e.waiting + g.inbox);
  one("moesaic:num_requests_preparing", "gauge",
      "Requests whose JSON, schemas and tokens are being read, or wait for that.", g.preparing);
  one("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache's pages that requests hold, 1 is all.",
      share(e.full));
  one("moesaic:kv_pages_used", "gauge", "Pages that requests hold, of the layers with full attention.",
      e.full.used);
  one("moesaic:kv_pages_cached", "gauge", "Pages kept for prompts that begin alike.", e.full.cached);
  one("moesaic:kv_pages_total", "gauge", "All pages of the layers with full attention.", e.full.total);
  one("moesaic:kv_window_pages_used", "gauge", "Pages that requests hold, of the layers with a window.",
      e.window.used);
  one("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", e.prompt_tokens);
  one("vllm:generation_tokens_total", "counter", "Tokens generated.", e.generated_tokens);
  one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked for in the cache.",
      e.prefix_queried);
  one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were there.", e.prefix_hits);
  one("vllm:num_preemptions_total", "counter", "Generations that gave their pages to older ones.",
      e.preemptions);
  one("moesaic:step_captures_total", "counter", "Steps that the device captured as CUDA graphs.", e.captures);
  one("moesaic:step_capture_failures_total", "counter",
      "Steps that could not be captured and ran without a graph.", e.failed_captures);
  one("moesaic:steps_total", "counter", "Steps of the engine.", e.steps);
  one("moesaic:step_seconds_total", "counter", "Seconds spent in steps.", e.step_seconds);
  one("moesaic:step_host_seconds_total", "counter",
      "The host's part of them: what the device computes or the host waits for is not in it.",
      e.host_seconds);
  one("process_resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes());
  write_for_routers(e, text);
  write_speculation(e.speculation, text);
  write_store(e.store, text);
  histogram("vllm:time_to_first_token_seconds", "From a request's head to its first token.",
            time_to_first_token);
  histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", inter_token);
  histogram("vllm:e2e_request_latency_seconds", "From a request's head to the end.", end_to_end);
  histogram("vllm:request_queue_time_seconds", "From a request's tokens to the engine.", queue_time);
  histogram("moesaic:request_prepare_time_seconds", "From a request's body to its tokens.", prepare_time);
  histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_length);
  histogram("vllm:request_generation_tokens", "Tokens of an answer.", generation_length);
  head("vllm:request_success_total", "counter", "Generations that ended, by reason.", text);
  constexpr const char* kReasons[] = {"none", "stop", "length", "abort", "error"};
  for (size_t i = 1; i < finished.size(); ++i)
    text += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_, kReasons[i],
                        finished[i].load());
  one("moesaic:connections", "gauge", "Open connections.", connections.load());
  one("moesaic:request_body_bytes", "gauge",
      "Bytes in memory of requests' bodies, of what answers keep of them, and of answers that are not read "
      "yet.",
      body_bytes.load());
  one("moesaic:refused_busy_total", "counter", "Requests refused because the queue was full.",
      refused_busy.load());
  one("moesaic:harmony_recoveries_total", "counter", "Places where an answer left the harmony format.",
      recoveries.load());
  head("moesaic:http_requests_total", "counter", "Requests, by route and status.", text);
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_)
    text += fmt::format("moesaic:http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first,
                        key.second, count);
  return text;
}

}  // namespace moesaic::server
