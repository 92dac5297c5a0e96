// How far results are off.
#pragma once

#include <cmath>

namespace moesaic::cuda::sm90 {

// Relative rms of what is added.
struct Error {
  double difference = 0, value = 0;
  void add(double got, double want) { difference += (got - want) * (got - want), value += want * want; }
  double relative() const { return std::sqrt(difference / value); }
};

}  // namespace moesaic::cuda::sm90
