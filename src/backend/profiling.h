// A backend's report about its steps, for `profile`, `plan` and `bench`: an optional interface beside
// Backend, which Backend::profiler() gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace moesaic {

// One op in all steps since reset.
struct OpProfile {
  std::string op;  // "qkv", "attend", ...
  int64_t calls = 0;
  double seconds = 0;
  double bytes = 0;  // weights and KV read
  double flops = 0;
  std::vector<std::string> kernels = {};  // kernels that a device launched for it, in order, each once
};

// One op of one step, as it was measured.
struct OpSpan {
  std::string op;
  int layer = -1;  // -1: before or behind the layers
  int rank = 0;
  // begin: on the CPU on the clock that its ranks share, on a GPU since the rank's first op.
  double begin = 0, seconds = 0;
  double bytes = 0, flops = 0;  // as those of OpProfile
};

// The kernels that an op of a step runs, by the backend's tables.
struct KernelChoice {
  std::string op, kernel;
};

class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual std::vector<OpProfile> profile() const = 0;
  virtual void reset_profile() = 0;
  // True if steps measure each op's seconds. A device then runs them one after the other, without overlap;
  // the CPU always measures.
  virtual void time_ops(bool) {}
  // The ops of the last step in the order in which they ran, rank by rank; empty where their seconds were not
  // measured. Not while a step runs.
  virtual std::vector<OpSpan> last_step() const { return {}; }
  // Read bandwidth in GB/s, measured now: the ceiling beside which figures are printed. The first call may
  // take longer than later ones.
  virtual double read_bandwidth() = 0;
  // Operations a second of matrix products, measured now, where BackendCaps does not state them; 0: not
  // measured.
  virtual double multiply_rate() { return 0; }
  // The kernels of a loaded model for a prompt of so many tokens; empty where a backend has no choice to
  // make.
  virtual std::vector<KernelChoice> kernel_choices(int) { return {}; }
};

// 0 where the backend does not measure it.
inline double read_bandwidth(Backend& backend) {
  Profiler* const profiler = backend.profiler();
  return profiler != nullptr ? profiler->read_bandwidth() : 0;
}

}  // namespace moesaic
