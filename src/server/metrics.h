// Counters for Prometheus, with vLLM's names where it has them, so that its dashboards work.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/stats.h"
#include "moesaic/types.h"

namespace moesaic::server {

// Buckets are fixed at construction. Thread-safe.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);
  void write(const std::string& name, const std::string& labels, std::string& text) const;

 private:
  std::vector<double> bounds_;                 // upper, ascending; +Inf is implied
  std::vector<std::atomic<uint64_t>> counts_;  // values in each bucket, not cumulated
  std::atomic<double> sum_ = 0;
};

// Gauges, read when the metrics are requested.
struct Gauges {
  EngineStats engine;
  int inbox = 0;      // generations that the engine has not seen yet
  int preparing = 0;  // requests whose JSON, schemas and tokens are being read
};

// Thread-safe.
struct Metrics {
  explicit Metrics(const std::string& model_name);

  std::atomic<uint64_t> recoveries = 0, refused_busy = 0;
  std::atomic<int> connections = 0;
  std::atomic<size_t> body_bytes = 0;
  std::array<std::atomic<uint64_t>, 5> finished{};  // by FinishReason
  Histogram time_to_first_token, inter_token, end_to_end, prepare_time, queue_time, prompt_length,
      generation_length;

  void count_request(std::string_view route, int status);
  // The text format 0.0.4.
  std::string text(const Gauges& gauges) const;

 private:
  void write_for_routers(const EngineStats& engine, std::string& text) const;
  void write_speculation(const SpeculationStats& stats, std::string& text) const;
  void write_store(const KvStoreStats& stats, std::string& text) const;

  std::string labels_;  // model_name="..."
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;  // by route and status
};

}  // namespace moesaic::server
