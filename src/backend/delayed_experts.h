// For tests: experts that compute next to nothing, after a random delay.
#pragma once

#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "backend/host_experts.h"

namespace moesaic {

// Mostly none, often a turn of another thread or some microseconds, now and then longer than a thread polls.
inline void delay(std::mt19937& rng) {
  const unsigned choice = rng() % 4096;
  if (choice == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(6));
  } else if (choice < 16) {
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 300));
  } else if (choice < 512) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(rng() % 20);
    while (std::chrono::steady_clock::now() < end) {
    }
  } else if (choice < 1024) {
    std::this_thread::yield();
  }
}

class DelayedExperts final : public HostExperts {
 public:
  static constexpr int kFailing = 99;  // a layer
  explicit DelayedExperts(unsigned seed) : rng_(seed) {}

  static float expected(int layer, float normed) { return 2 * normed + static_cast<float>(layer); }

  Result<int> add(const LayerShape&, const LayerWeights&, const LayerAdapter&, const std::string&) override {
    return 0;
  }
  Status ready() override { return {}; }
  // Every id and weight is looked at, so that a sanitizer sees it.
  Status run(int layer, const RoutedRows& rows, float* out) override {
    delay(rng_);
    std::this_thread::sleep_for(std::exchange(stall, {}));
    if (const auto first = std::exchange(held, {}); first.valid()) first.wait();
    ++runs_;
    if (layer == kFailing) return Status(StatusCode::kInternal, "it failed");
    for (int i = 0; i < rows.rows * top_k; ++i) seen_ += rows.weights[i] * static_cast<float>(rows.ids[i]);
    for (int i = 0; i < rows.rows * hidden; ++i) out[i] = expected(layer, rows.normed[i]);
    return {};
  }
  std::optional<LayerPanels> panels(int) override { return std::nullopt; }
  double bytes() const override { return 0; }
  double read_bandwidth() override { return 0; }
  std::string name() const override { return "delayed"; }
  int runs() const { return runs_; }

  int hidden = 8, top_k = 2;
  std::chrono::milliseconds stall{0};  // for the next run
  std::future<void> held;              // the next run waits for it, if there is one

 private:
  std::mt19937 rng_;
  int runs_ = 0;
  float seen_ = 0;
};

}  // namespace moesaic
