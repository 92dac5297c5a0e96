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

double experts_in(const std::vector<MemoryPart>& parts) {
  double bytes = 0;
  for (const MemoryPart& p : parts)
    bytes += p.name == kExpertsPart || p.name == kLockedExpertsPart ? p.bytes : 0;
  return bytes;
}

// If not all parts fit, has memory hold as many experts as fit beside the others; a step reads the rest from
// the file. False: that cannot be.
bool hold_what_fits(const std::vector<MemoryPart>& parts, double free, const ModelConfig& config,
                    const ModelWeights& weights, Backend& backend) {
  if (bytes_of(parts) <= free) return true;
  constexpr double kShare = 0.9;  // share of the free memory: the rest keeps a part of the file
  const double held = experts_in(parts), all = held / backend.held_experts();
  const double share = (kShare * free - (bytes_of(parts) - held)) / all;
  return may_hold_part(share, config, weights) && backend.hold_experts(std::min(1.0, share));
}

Status check_host_memory(const ModelConfig& config, const ModelWeights& weights,
                         const HostPlacement& placement, Backend& backend) {
  const std::vector<MemoryPart> parts = placement.host_memory(config, weights);
  const double free = available_host_memory();
  if (hold_what_fits(parts, free, config, weights, backend)) return {};
  return error(
      StatusCode::kOutOfMemory,
      "the experts of {} of {} layers take {:.2f} GB of host memory, {:.2f} GB are free; use --experts "
      "host:LAYERS with fewer layers, a larger --gpu-memory, or a smaller model",
      placement.host_layers(), config.layers, bytes_of(parts) / 1e9, free / 1e9);
}

}  // namespace

bool may_hold_part(double share, const ModelConfig& config, const ModelWeights& weights) {
  return weights.intact && !weights.convert_experts && config.experts > 0 &&
         share * config.experts >= config.experts_per_token;
}

KvDemand least_demand(KvDemand demand, const ModelConfig& config) {
  if (demand.context == 0) {
    const int64_t most = demand.kv_tokens > 0 ? demand.kv_tokens : kLeastContext;
    demand.context = static_cast<int>(std::min<int64_t>({most, kLeastContext, config.max_context}));
  }
  demand.sequences = std::max(1, demand.sequences);
  demand.logit_rows = std::max(demand.logit_rows, demand.sequences);
  return demand;
}

namespace {

Status place_layers(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                    HostPlacement& placement, Backend& backend) {
  const ExpertPlacement& asked = placement.asked();
  if (!asked.automatic) return placement.place(asked.asked_of(config.layers)), Status();
  for (int layers = 0; layers <= config.layers; ++layers) {
    placement.place(layers);
    ASSIGN_OR_RETURN(const bool enough, fits(demand, config, weights, backend));
    if (enough) break;
  }
  return {};
}

// plan_memory() says what does not fit all the same.
Status hold_on_host(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                    Backend& backend) {
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(config, demand));
  const std::vector<MemoryPart> parts = parts_of(demand, config, weights, layout, backend);
  static_cast<void>(hold_what_fits(parts, backend.available_memory(), config, weights, backend));
  return {};
}

}  // namespace

Status place_experts(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                     Backend& backend) {
  HostPlacement* const placement = backend.host_placement();
  if (placement == nullptr) return hold_on_host(demand, config, weights, backend);
  RETURN_IF_ERROR(place_layers(demand, config, weights, *placement, backend));
  RETURN_IF_ERROR(check_host_memory(config, weights, *placement, backend));
  // Without room for prompts on the device more layers may have room there.
  return backend.held_experts() < 1 ? place_layers(demand, config, weights, *placement, backend) : Status();
}

namespace {

std::string held_words(double bytes, const Backend& backend) {
  const double share = backend.held_experts();
  if (share >= 1) return {};
  return fmt::format(
      "memory has room for {:.0f}% of {} experts, {:.2f} of {:.2f} GB: a step reads the others from the "
      "model's file, which is slow",
      100 * share, backend.device().backend == "cpu" ? "the" : "these", bytes / 1e9, bytes / share / 1e9);
}

}  // namespace

std::string placement_words(const ModelConfig& config, const ModelWeights& weights, Backend& backend) {
  const HostPlacement* const placement = backend.host_placement();
  if (placement == nullptr)
    return backend.held_experts() < 1 ? held_words(experts_in(backend.memory(config, weights, {})), backend)
                                      : std::string();
  if (placement->host_layers() == 0) return {};
  const int layers = placement->host_layers();
  const std::vector<MemoryPart> parts = placement->host_memory(config, weights);
  const bool locked =
      std::ranges::any_of(parts, [](const MemoryPart& p) { return p.name == kLockedExpertsPart; });
  const int hot = placement->asked().hot;
  const std::string held = held_words(experts_in(parts), backend);
  return fmt::format("experts of layers {} to {} ({} of {}) in host memory, {:.2f} GB{}{}{}{}",
                     config.layers - layers, config.layers - 1, layers, config.layers,
                     bytes_of(parts, MemoryKind::kWeights) / 1e9, locked ? ", page-locked" : "",
                     hot > 0 ? fmt::format(", {} hot ones of each on the GPU, too", hot) : "",
                     placement->asked().automatic ? ": the GPU has no room for them" : "",
                     held.empty() ? "" : "; " + held + "; the CPU computes prompts, too");
}

}  // namespace moesaic
