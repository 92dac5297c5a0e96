// Times work on the device as a decode step runs it: captured once as a graph, then replayed.
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {

// Seconds of each replay, sorted: one replay untimed, then until `seconds` are spent, five to 200. refresh(i)
// puts work on the stream before replay i, untimed.
Result<std::vector<double>> time_replays(const std::function<Status()>& work,
                                         const std::function<Status(int)>& refresh, double seconds,
                                         cudaStream_t stream);

}  // namespace moesaic::cuda
