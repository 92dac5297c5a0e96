#include "backend/break_even.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/seconds.h"

namespace moesaic {

Result<int> break_even_rows(double device_seconds, const BreakEvenRange& range,
                            const std::function<Result<double>(int rows)>& host_seconds) {
  int before = 0;
  double seconds_before = 0;
  for (int rows = range.least;; rows = std::min(2 * rows, range.most)) {
    ASSIGN_OR_RETURN(const double seconds, host_seconds(rows));
    if (seconds > device_seconds) {
      if (before == 0) return rows;
      const double part = (device_seconds - seconds_before) / (seconds - seconds_before);
      return before + std::clamp(static_cast<int>(std::ceil(part * (rows - before))), 1, rows - before);
    }
    if (rows == range.most) return range.most + 1;
    before = rows, seconds_before = seconds;
  }
}

Result<double> time_host_experts(HostExperts& experts, int layer, const ModelConfig& config, int rows) {
  const auto values = static_cast<size_t>(rows) * static_cast<size_t>(config.hidden),
             choices = static_cast<size_t>(rows) * static_cast<size_t>(config.experts_per_token);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> normed(values), out(values),
      weights(choices, 1.0f / static_cast<float>(config.experts_per_token));
  std::vector<int32_t> ids(choices);
  for (float& v : normed) v = normal(rng);
  for (size_t i = 0; i < choices; ++i) ids[i] = static_cast<int32_t>(i % static_cast<size_t>(config.experts));
  const RoutedRows routed{
      .rows = rows, .normed = normed.data(), .ids = ids.data(), .weights = weights.data()};
  double least = 0;
  constexpr int kTimes = 2;  // the first time there is memory to be had
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(experts.run(layer, routed, out.data()));
    const double seconds = seconds_since(start);
    least = i == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

}  // namespace moesaic
