#include "api/choose_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/expert_placement.h"
#include "engine/kv_layout.h"
#include "tuning/rank_projection.h"

namespace moesaic {
namespace {

// A rank more is taken where a token becomes so much quicker than with the fewer ones.
constexpr double kLeastGain = 1.1;
// A GPU needs so much beside weights and KV cache: 0.6 GB for CUDA and the kernels, 1.4 for a step of 8,192
// rows of the 20b, 0.4 for the logits of 512 sequences, and some for other programs.
constexpr double kOtherBytes = 2.5e9;

// Returns the bytes of the first rank, which has no less than the others.
double bytes_of_rank(const RankedModel& m, int ranks) {
  const StoredBytes part = stored_bytes(cut(m.weights, m.config, {.rank = 0, .ranks = ranks}));
  const double heads = static_cast<double>(RankShare{0, ranks}.kv_heads(m.config.kv_heads).count);
  return part.experts + part.embedding + part.rest + part.adapters +
         bytes_made_of(part.projections, m.weights.layers[0].q.format, m.dense) +
         bytes_made_of(part.head, m.weights.head.format, m.dense) +
         m.cache_bytes * heads / m.config.kv_heads + kOtherBytes;
}

double token_seconds(const RankedModel& m, double bytes_per_second, int ranks) {
  DecodeBytes bytes = decode_bytes(m.config, m.weights);
  bytes.dense = bytes_made_of(bytes.dense, m.weights.layers[0].q.format, m.dense);
  return decode_seconds(m.config, bytes, bytes_per_second, ranks, 1);
}

// Returns the GPUs as --device names them: "cuda:0,1".
std::string device_of(const std::vector<int>& gpus) {
  std::string name = "cuda:";
  for (const int gpu : gpus) name += (name.back() == ':' ? "" : ",") + std::to_string(gpu);
  return name;
}

bool contains(const std::vector<int>& all, int one) { return std::ranges::find(all, one) != all.end(); }

// Returns why `next` cannot be a rank beside those that are taken; empty: it can.
std::string why_not(const std::vector<const RankGpu*>& taken, const RankGpu& next) {
  const RankGpu& first = *taken[0];
  if (next.kind != first.kind)
    return fmt::format("cuda:{} is another kind than cuda:{}", next.index, first.index);
  for (const RankGpu* gpu : taken) {
    if (contains(gpu->reaches, next.index) && contains(next.reaches, gpu->index)) continue;
    return fmt::format("cuda:{} and cuda:{} do not reach each other's memory (nvidia-smi topo -p2p n)",
                       gpu->index, next.index);
  }
  return {};
}

// The GPUs that may be ranks together, and why no more may.
struct Group {
  std::vector<const RankGpu*> gpus;
  std::string end;
};
Group group_of(const RankedModel& m, std::span<const RankGpu> all) {
  Group group{.gpus = {&all[0]}, .end = all.size() == 1 ? "there is one" : ""};
  if (!m.one_only.empty() || !all[0].one_only.empty()) {
    group.end = m.one_only.empty() ? all[0].one_only : m.one_only;
    return group;
  }
  for (const RankGpu& next : all.subspan(1)) {
    if (static_cast<int>(group.gpus.size()) == kMostRanks) break;
    const std::string reason = why_not(group.gpus, next);
    if (reason.empty()) group.gpus.push_back(&next);
    if (!reason.empty() && group.end.empty()) group.end = reason;
  }
  return group;
}

// Returns the message of check_ranks() without "--tp N: ".
std::string cut_reason(const Status& status) {
  const std::string& line = status.message();
  return line.substr(line.find(": ") + 2);
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

// Says why there are `ranks`, neither fewer nor more.
std::string reason_of(const RankedModel& m, const RankGpu& gpu, const Group& group, int ranks, int fewest) {
  const double need = bytes_of_rank(m, ranks), speed = gpu.bytes_per_second;
  if (need > gpu.memory)
    return fmt::format("the model needs {:.1f} GB on each, they have {:.1f} GB{}", need / 1e9,
                       gpu.memory / 1e9, group.end.empty() ? "" : "; " + group.end);
  if (ranks > 1 && ranks == fewest)
    return fmt::format("the model needs {:.1f} GB on one, which has {:.1f} GB", bytes_of_rank(m, 1) / 1e9,
                       gpu.memory / 1e9);
  if (ranks > 1)
    return fmt::format(
        "a token takes {} by projection, on {} {}", milliseconds(token_seconds(m, speed, ranks)),
        fewest == 1 ? "one" : std::to_string(fewest), milliseconds(token_seconds(m, speed, fewest)));
  if (group.gpus.size() == 1) return group.end;
  if (const Status status = check_ranks(m.config, m.weights, 2); !status.ok()) return cut_reason(status);
  if (speed == 0) return "the model has room on it, and the driver does not tell its memory's bandwidth";
  return fmt::format("a token takes {} by projection, on two {}", milliseconds(token_seconds(m, speed, 1)),
                     milliseconds(token_seconds(m, speed, 2)));
}

}  // namespace

RankChoice choose_gpus(const RankedModel& m, std::span<const RankGpu> gpus) {
  const Group group = group_of(m, gpus);
  const RankGpu& first = *group.gpus[0];
  int fewest = 1, best = 1;
  for (int ranks = 2; ranks <= static_cast<int>(group.gpus.size()); ++ranks) {
    if (!check_ranks(m.config, m.weights, ranks).ok()) continue;
    if (bytes_of_rank(m, best) > first.memory) {
      fewest = best = ranks;
    } else if (first.bytes_per_second > 0 && token_seconds(m, first.bytes_per_second, ranks) * kLeastGain <
                                                 token_seconds(m, first.bytes_per_second, best)) {
      best = ranks;
    }
  }
  RankChoice choice{.ranks = best};
  for (int rank = 0; rank < best; ++rank) choice.gpus.push_back(group.gpus[static_cast<size_t>(rank)]->index);
  choice.reason = fmt::format("{} ({}): {}", best == 1 ? "one GPU" : fmt::format("{} GPUs", best),
                              device_of(choice.gpus), reason_of(m, first, group, best, fewest));
  return choice;
}

RankChoice choose_nodes(const RankedModel& m, const ThreadPlan& threads) {
  const int nodes = static_cast<int>(threads.nodes.size());
  const auto one = [](const std::string& reason) {
    return RankChoice{.ranks = 1, .gpus = {}, .reason = "one rank: " + reason};
  };
  if (!m.one_only.empty()) return one(m.one_only);
  if (nodes == 1) return one("there is one NUMA node with threads");
  if (nodes > kMostRanks)
    return one(fmt::format("there are {} NUMA nodes, and at most {} ranks", nodes, kMostRanks));
  if (const Status status = check_ranks(m.config, m.weights, nodes); !status.ok())
    return one(fmt::format("{} NUMA nodes: {}", nodes, cut_reason(status)));
  std::string reason = fmt::format("{} ranks, one for each NUMA node; threads:", nodes);
  for (const ThreadPlan::Node& node : threads.nodes)
    reason += fmt::format("{} {} on node {}", reason.back() == ':' ? "" : ",", node.threads, node.id);
  return {.ranks = nodes, .gpus = {}, .reason = reason};
}

std::string one_rank_reason(const std::string& speculative) {
  return speculative.starts_with("eagle3") ? "draft heads (--speculative eagle3) have one rank" : "";
}

namespace {

std::string reason_of_model(const ModelConfig& c, const BackendOptions& o, bool gpu) {
  if (gpu && c.layers < 2) return "a model of one layer has one rank";
  if (gpu && is_w4a8(o.moe_path)) return "--moe-path w4a8 and w4a8x2 have one rank";
  if (gpu && (o.experts.automatic || o.experts.host_layers != 0 || o.gpu_memory > 0))
    return "experts in host memory (--experts, --gpu-memory) have one rank";
  return {};
}

// Returns the bytes of the least KV cache, with K and V of 16 bits, or 8.
Result<double> least_cache(const ModelConfig& c, int context, KvFormat format) {
  const KvDemand demand = least_demand({.context = context}, c);
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(c, demand));
  double pages = 0;
  for (const bool sliding : c.sliding) pages += sliding ? layout.window_pages : layout.full_pages;
  return pages * layout.page_tokens * 2 * c.kv_size() * (format == KvFormat::kFp8 ? 1 : 2);
}

// Returns the GPUs that the device names, in its order; none where one of them is not there. "cuda:1" names
// that GPU and all behind it.
Result<std::vector<RankGpu>> named_gpus(const std::string& device, std::vector<RankGpu> all) {
  ASSIGN_OR_RETURN(const std::vector<int> indices, device_indices(device));
  std::vector<RankGpu> named;
  if (std::set(indices.begin(), indices.end()).size() < indices.size())
    return invalid("device '{}' names a GPU twice: say how many ranks by --tp, or name each once", device);
  if (indices.size() < 2) {
    std::erase_if(all, [&](const RankGpu& gpu) { return !indices.empty() && gpu.index < indices[0]; });
    return all;
  }
  for (const int index : indices) {
    const auto at = std::ranges::find(all, index, &RankGpu::index);
    if (at == all.end()) return std::vector<RankGpu>();
    named.push_back(*at);
  }
  return named;
}

void take_gpus(const RankChoice& chosen, const std::string& kind, DeviceChoice& choice) {
  choice.options.tp = chosen.ranks, choice.options.devices = chosen.gpus;
  if (kind == "cuda") choice.device = device_of(chosen.gpus);
}

}  // namespace

std::vector<RankGpu> usable_gpus() {
  std::vector<RankGpu> gpus = rank_gpus();  // first, as it prepares CUDA for ranks
  return no_gpu_reason().empty() ? gpus : std::vector<RankGpu>();
}

Status settle_ranks(const Checkpoint& checkpoint, int context, const std::string& one_only,
                    DeviceChoice& choice, const std::function<std::vector<RankGpu>()>& find_gpus) {
  BackendOptions& o = choice.options;
  if (o.tp > 0) return {};
  const bool by_node = o.tp == kRankPerNode;
  o.tp = 1;
  const std::string kind = choice.device.substr(0, choice.device.find(':'));
  std::vector<RankGpu> gpus;
  if (kind == "cuda" || kind == "auto") {
    ASSIGN_OR_RETURN(gpus, named_gpus(choice.device, find_gpus()));
    if (kind == "cuda" && gpus.empty()) return {};  // create_backend() says what is missing
  }
  if (by_node && !gpus.empty())
    return invalid("--tp numa: the NUMA nodes are the CPU's; use --device cpu, or --tp auto");
  RankedModel model{checkpoint.config, checkpoint.weights, o.dense, 0, one_only};
  if (model.one_only.empty()) model.one_only = reason_of_model(checkpoint.config, o, !gpus.empty());
  if (!gpus.empty()) {
    ASSIGN_OR_RETURN(model.cache_bytes, least_cache(checkpoint.config, context, o.kv));
    const RankChoice chosen = choose_gpus(model, gpus);
    take_gpus(chosen, kind, choice);
    choice.ranks = chosen.reason;
    return {};
  }
  if (!by_node || kind == "reference") {
    choice.ranks =
        "one rank: those of a host share its memory (--device cpu --tp numa has one for each NUMA node)";
    return {};
  }
  if (!o.cpu_pin) return invalid("--tp numa: threads stay on their nodes; leave out --cpu-pin off");
  const RankChoice chosen = choose_nodes(
      model, plan_threads(read_cpu_topology(o.system_root, current_affinity()), o.threads, true));
  o.tp = chosen.ranks, o.rank_per_node = chosen.ranks > 1;
  choice.ranks = chosen.reason;
  return {};
}

}  // namespace moesaic
