// Says which layers' experts are in host memory. Backends have it that can leave experts to the host.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace moesaic {

// Optional interface of a backend. How many layers are the host's is chosen before the model is loaded: by
// place_experts() (engine/expert_placement.h).
class HostPlacement {
 public:
  virtual ~HostPlacement() = default;

  virtual const ExpertPlacement& asked() const = 0;
  // The experts of the last so many layers are to be the host's. Before load().
  virtual void place(int host_layers) = 0;
  virtual bool placed() const = 0;
  virtual int host_layers() const = 0;  // 0 until they are placed
  // The host's memory that those layers' experts take: as kExpertsPart, or kLockedExpertsPart where it is
  // page-locked.
  virtual std::vector<MemoryPart> host_memory(const ModelConfig& config,
                                              const ModelWeights& weights) const = 0;
  // Once a model is loaded: "cpu (avx512, 15 threads)", and GB/s at which it can read experts. Empty and 0:
  // the host has none.
  virtual std::string host_name() const = 0;
  virtual double host_read_bandwidth() = 0;
};

}  // namespace moesaic
