// From how many rows on a device computes a layer's experts sooner than the CPU: it must bring them first,
// which takes as long for few rows as for many.
#pragma once

#include <functional>

#include "backend/host_experts.h"
#include "core/model_config.h"
#include "moesaic/status.h"

namespace moesaic {

struct BreakEvenRange {
  int least = 1, most = 1;  // rows
};
// The fewest rows for which the host takes longer than the device does, which takes device_seconds whatever
// the rows are; most + 1: the host never does. Asks for twice as many rows again and again, and goes on a
// straight line between the last two.
Result<int> break_even_rows(double device_seconds, const BreakEvenRange& range,
                            const std::function<Result<double>(int rows)>& host_seconds);

// Seconds that the experts of a layer take for so many rows, each of whose experts is chosen as often as the
// others.
Result<double> time_host_experts(HostExperts& experts, int layer, const ModelConfig& config, int rows);

}  // namespace moesaic
