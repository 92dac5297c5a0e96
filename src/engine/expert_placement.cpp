#include "engine/expert_placement.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr int kLeastContext = 8192;  // tokens

Result<bool> fits(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                  Backend& backend) {
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(config, demand));
  return bytes_of(parts_of(demand, config, weights, layout, backend)) <= backend.available_memory();
}

Status check_host_memory(const ModelConfig& config, const ModelWeights& weights,
                         const HostPlacement& placement) {
  const double needed = bytes_of(placement.host_memory(config, weights)), free = available_host_memory();
  if (needed <= free) return {};
  return error(
      StatusCode::kOutOfMemory,
      "the experts of {} of {} layers take {:.2f} GB of host memory, {:.2f} GB are free; use --experts "
      "host:LAYERS with fewer layers, a larger --gpu-memory, or a smaller model",
      placement.host_layers(), config.layers, needed / 1e9, free / 1e9);
}

}  // namespace

KvDemand least_demand(KvDemand demand, const ModelConfig& config) {
  if (demand.context == 0) {
    const int64_t most = demand.kv_tokens > 0 ? demand.kv_tokens : kLeastContext;
    demand.context = static_cast<int>(std::min<int64_t>({most, kLeastContext, config.max_context}));
  }
  demand.sequences = std::max(1, demand.sequences);
  demand.logit_rows = std::max(demand.logit_rows, demand.sequences);
  return demand;
}

Status place_experts(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                     Backend& backend) {
  HostPlacement* const placement = backend.host_placement();
  if (placement == nullptr) return {};
  const ExpertPlacement& asked = placement->asked();
  if (!asked.automatic) {
    placement->place(asked.asked_of(config.layers));
    return check_host_memory(config, weights, *placement);
  }
  for (int layers = 0; layers <= config.layers; ++layers) {
    placement->place(layers);
    ASSIGN_OR_RETURN(const bool enough, fits(demand, config, weights, backend));
    if (enough) break;
  }
  return check_host_memory(config, weights, *placement);
}

std::string placement_words(const ModelConfig& config, const ModelWeights& weights, Backend& backend) {
  const HostPlacement* const placement = backend.host_placement();
  if (placement == nullptr || placement->host_layers() == 0) return {};
  const int layers = placement->host_layers();
  const std::vector<MemoryPart> parts = placement->host_memory(config, weights);
  const bool locked =
      std::ranges::any_of(parts, [](const MemoryPart& p) { return p.name == kLockedExpertsPart; });
  const int hot = placement->asked().hot;
  return fmt::format("experts of layers {} to {} ({} of {}) in host memory, {:.2f} GB{}{}{}",
                     config.layers - layers, config.layers - 1, layers, config.layers,
                     bytes_of(parts, MemoryKind::kWeights) / 1e9, locked ? ", page-locked" : "",
                     hot > 0 ? fmt::format(", {} hot ones of each on the GPU, too", hot) : "",
                     placement->asked().automatic ? ": the GPU has no room for them" : "");
}

}  // namespace moesaic
