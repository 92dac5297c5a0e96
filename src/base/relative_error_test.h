// For tests: how far results are off.
#pragma once

#include <cmath>
#include <span>

namespace moesaic {

// The relative rms of what is added.
struct RelativeError {
  double difference = 0, size = 0;
  void add(double got, double want) { difference += (got - want) * (got - want), size += want * want; }
  double value() const { return std::sqrt(difference / size); }
};

inline double relative_error(std::span<const float> got, std::span<const float> want) {
  RelativeError error;
  for (size_t i = 0; i < want.size(); ++i) error.add(got[i], want[i]);
  return error.value();
}

}  // namespace moesaic
