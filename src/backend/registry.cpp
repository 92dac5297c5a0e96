#include <algorithm>
#include <charconv>
#include <future>
#include <optional>
#include <system_error>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#if MOESAIC_CUDA
#include "backend/cuda/cuda_backend.h"
#endif
#include "backend/cuda_device.h"
#include "backend/moe_operator.h"
#include "backend/parallel_backend.h"
#include "backend/rank_gpus.h"
#include "backend/step_operator.h"
#include "backend/warm_up.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "base/strings.h"

namespace moesaic {
namespace {

int host_prefill_rows(const BackendOptions&) { return kHostPrefillRows; }

struct Entry {
  const char* name;
  // Empty when this machine can run the backend, else the reason that it cannot.
  std::string (*absent)();
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions&);
  std::vector<DeviceInfo> (*devices)();  // none if the backend is absent
  int (*prefill_rows)(const BackendOptions& options) = host_prefill_rows;
};

std::string never_absent() { return {}; }
std::vector<DeviceInfo> reference_devices() { return {host_device("reference")}; }
#if !MOESAIC_CUDA
std::string cuda_absent() { return "this build has no CUDA backend (no nvcc, or -DMOESAIC_CUDA=OFF)"; }
Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions&) {
  return invalid("device cuda: {}; use --device cpu", cuda_absent());
}
std::vector<DeviceInfo> cuda_devices() { return {}; }
int cuda_prefill_rows(const BackendOptions& options) { return host_prefill_rows(options); }
std::string cuda_code() { return {}; }
void prepare_cuda_ranks() {}
#endif

// In the order of preference of "auto".
constexpr Entry kBackends[] = {
    {"cuda", cuda_absent, create_cuda_backend, cuda_devices, cuda_prefill_rows},
    {"cpu", never_absent, create_cpu_backend, cpu_devices},
    {"reference", never_absent, create_reference_backend, reference_devices},
};

// The threads of all ranks of a host together.
ThreadPlan threads_of_ranks(const BackendOptions& options) {
  return plan_threads(read_cpu_topology(options.system_root, current_affinity()), options.threads,
                      options.cpu_pin);
}

Status check_rank_options(const Entry& entry, const BackendOptions& options, const ThreadPlan& threads) {
  if (options.tp < 1 || options.tp > kMostRanks)
    return invalid("--tp {}: 1 to {} ranks", options.tp, kMostRanks);
  if (entry.name == std::string_view("cuda") &&
      (options.experts.automatic || options.experts.host_layers != 0 || options.gpu_memory > 0))
    return error(StatusCode::kUnsupported,
                 "--tp {}: experts in host memory (--experts, --gpu-memory) have one rank; use --tp 1",
                 options.tp);
  if (options.rank_per_node &&
      (entry.name != std::string_view("cpu") || threads.nodes.size() != static_cast<size_t>(options.tp)))
    return invalid("--tp numa: {} ranks on device {}, which has threads on {} NUMA nodes", options.tp,
                   entry.name, threads.nodes.size());
  return {};
}

// Creates the backend on a thread that stays on the node, so that its threads and memory are there, too.
Result<std::unique_ptr<Backend>> create_on_node(const Entry& entry, const BackendOptions& options,
                                                const ThreadPlan::Node& node) {
  return std::async(std::launch::async,
                    [&] {
                      stay_on(node);
                      return entry.create(options);
                    })
      .get();
}

// The ranks that name the same GPU share it.
BackendOptions::Part part_of(const std::vector<int>& devices, size_t rank) {
  if (devices.empty()) return {};
  const auto begin = devices.begin(), own = begin + static_cast<std::ptrdiff_t>(rank);
  return {.index = static_cast<int>(std::count(begin, own, *own)),
          .count = static_cast<int>(std::count(begin, devices.end(), *own))};
}

Result<std::unique_ptr<Backend>> create_ranks(const Entry& entry, const BackendOptions& options) try {
  const ThreadPlan threads = threads_of_ranks(options);
  RETURN_IF_ERROR(check_rank_options(entry, options, threads));
  const auto exchange = std::make_shared<Exchange>(options.tp, kRankLimit);
  BackendOptions own = options;
  own.tp = 1, own.threads = std::max(1, threads.threads / options.tp);
  // Nothing is tuned: a measurement beside other ranks holds for nobody else, and all ranks must choose the
  // same kernels.
  own.tuning_folder = {}, own.tune = false;
  std::vector<std::unique_ptr<Backend>> ranks;
  for (int rank = 0; rank < options.tp; ++rank) {
    const auto index = static_cast<size_t>(rank);
    own.rank = {.share = {.rank = rank, .ranks = options.tp}, .exchange = exchange};
    own.device = options.devices.empty() ? options.device + rank : options.devices[index];
    own.part = part_of(options.devices, index);
    if (rank > 0) own.router_trace = nullptr;
    if (options.rank_per_node) own.threads = threads.nodes[index].threads;
    ASSIGN_OR_RETURN(ranks.emplace_back(), options.rank_per_node
                                               ? create_on_node(entry, own, threads.nodes[index])
                                               : entry.create(own));
  }
  return make_parallel_backend(
      std::move(ranks), exchange,
      {.together = entry.name == std::string_view("cuda"),
       .nodes = options.rank_per_node ? threads.nodes : std::vector<ThreadPlan::Node>()});
} catch (const std::system_error& e) {
  return error(StatusCode::kOutOfMemory, "--tp {}: cannot start a thread: {}", options.tp, e.what());
}

}  // namespace

Result<std::vector<int>> device_indices(const std::string& device) {
  std::vector<int> indices;
  const size_t colon = device.find(':');
  if (colon == std::string::npos) return indices;
  const char *at = device.data() + colon + 1, *const end = device.data() + device.size();
  while (true) {
    int& index = indices.emplace_back();
    const auto [stop, code] = std::from_chars(at, end, index);
    if (code != std::errc() || index < 0 || (stop != end && *stop != ','))
      return invalid("device '{}': use cuda, cuda:N, or cuda:N,M of several ranks", device);
    if (stop == end) return indices;
    at = stop + 1;
  }
}

Result<std::unique_ptr<Backend>> create_backend(const std::string& device, const BackendOptions& options) {
  const size_t colon = device.find(':');
  const std::string kind = device.substr(0, colon);
  BackendOptions chosen = options;
  if (colon != std::string::npos) {
    if (kind != "cuda")
      return invalid("unknown device '{}': use auto, cpu, cuda, cuda:N or reference", device);
    ASSIGN_OR_RETURN(const std::vector<int> indices, device_indices(device));
    chosen.device = indices[0];
    if (indices.size() > 1) {
      const int count = static_cast<int>(indices.size());
      if (chosen.tp == 1) chosen.tp = count;
      if (chosen.tp != count)
        return invalid("--tp {}: device '{}' names {} GPUs; use one for each rank", chosen.tp, device, count);
      chosen.devices = indices;
    }
  }
  if (chosen.tp > 1) prepare_cuda_ranks();
  for (const Entry& entry : kBackends) {
    if (kind != entry.name && (kind != "auto" || !entry.absent().empty())) continue;
    if (chosen.gpu_memory > 0 && entry.name != std::string_view("cuda"))
      return invalid("--gpu-memory: device {} has no GPU memory", entry.name);
    if (chosen.moe_path == MoePath::kFp8 && entry.name != std::string_view("cuda"))
      return invalid("--moe-path fp8: device {} has no such kernels, Ada and Hopper have; leave it out",
                     entry.name);
    if (chosen.max_rows == 0) chosen.max_rows = std::max(entry.prefill_rows(chosen), chosen.least_rows);
    return chosen.tp == 1 ? entry.create(chosen) : create_ranks(entry, chosen);
  }
  return invalid("unknown device '{}': use auto, cpu, cuda, cuda:N or reference", device);
}

#if !MOESAIC_CUDA
std::vector<RankGpu> rank_gpus() { return {}; }
Status check_cuda_device(const char* op, int) {
  return error(StatusCode::kUnsupported, "{}: {}", op, cuda_absent());
}
Result<std::string> warm_up(const std::string&, int, const std::function<void(const WarmKernel&)>&) {
  return error(StatusCode::kUnsupported, "warmup: {}", cuda_absent());
}
Result<std::unique_ptr<StepOperator>> prepare_step(const StepOperatorOptions&, const ModelConfig&,
                                                   const ModelWeights&) {
  return check_cuda_device("step", 0);
}
Result<std::unique_ptr<MoeOperator>> prepare_moe(const MoeOperatorOptions&, const MoeOperatorMatrix&,
                                                 const MoeOperatorMatrix&, void*) {
  return check_cuda_device("moe", 0);
}
#endif

Result<std::optional<Format>> dense_format(std::string_view name) {
  if (name == "keep") return std::optional<Format>();
  for (const FormatInfo& f : formats()) {
    if (!f.option.empty() && name == f.option) return std::optional(f.format);
  }
  return invalid("dense format '{}': use one of keep, {}", name, dense_options(", "));
}

Result<KvFormat> kv_format(std::string_view name) {
  if (name == "auto") return KvFormat::kOwn;
  if (name == "bf16") return KvFormat::kBf16;
  if (name == "fp8") return KvFormat::kFp8;
  return invalid("KV cache format '{}': use auto, bf16 or fp8", name);
}

Result<MoePath> moe_path(std::string_view name) {
  if (name == "auto") return MoePath::kAuto;
  if (name == "w4a8") return MoePath::kW4A8;
  if (name == "w4a8x2") return MoePath::kW4A8x2;
  if (name == "fp8") return MoePath::kFp8;
  return invalid("MoE path '{}': use auto, w4a8, w4a8x2 or fp8", name);
}

namespace {

// Nothing: it is none, or below `least`.
std::optional<int> number_of(std::string_view text, int least) {
  const std::optional<int> number = moesaic::number_of<int>(text);
  return number && *number >= least ? number : std::nullopt;
}

std::optional<ExpertPlacement> place_of(std::string_view name, double gpu_memory) {
  if (name.empty()) return ExpertPlacement{.automatic = gpu_memory > 0};
  if (name == "gpu") return ExpertPlacement();
  if (name == "auto") return ExpertPlacement{.automatic = true};
  if (name == "host") return ExpertPlacement{.host_layers = ExpertPlacement::kAllLayers};
  constexpr std::string_view kHost = "host:";
  const auto layers = name.starts_with(kHost) ? number_of(name.substr(kHost.size()), 0) : std::nullopt;
  return layers ? std::optional(ExpertPlacement{.host_layers = *layers}) : std::nullopt;
}

}  // namespace

namespace {

// "stream:ROWS", "stream:never" or "hot:EXPERTS".
bool apply(std::string_view addition, ExpertPlacement& placement) {
  const size_t colon = addition.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view key = addition.substr(0, colon), value = addition.substr(colon + 1);
  if (key != "stream" && key != "hot") return false;
  const bool never = key == "stream" && value == "never";
  const std::optional<int> number = never ? std::optional(ExpertPlacement::kNever) : number_of(value, 1);
  if (number) (key == "stream" ? placement.stream_rows : placement.hot) = *number;
  return number.has_value();
}

}  // namespace

Result<ExpertPlacement> expert_placement(std::string_view name, double gpu_memory) {
  size_t comma = name.find(',');
  std::optional<ExpertPlacement> placement = place_of(name.substr(0, comma), gpu_memory);
  while (placement && comma != std::string_view::npos) {
    const size_t next = name.find(',', comma + 1);
    if (!apply(name.substr(comma + 1, next - comma - 1), *placement)) placement.reset();
    comma = next;
  }
  if (placement) return *placement;
  return invalid(
      "experts '{}': use gpu, auto, host, or host:LAYERS, and behind it ,stream:ROWS or ,stream:never, and "
      ",hot:EXPERTS",
      name);
}

std::string no_gpu_reason() { return kBackends[0].absent(); }
std::string gpu_code() { return cuda_code(); }

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices;
  for (const Entry& entry : kBackends) {
    const std::vector<DeviceInfo> found = entry.devices();
    devices.insert(devices.end(), found.begin(), found.end());
    if (found.empty())
      devices.push_back(
          {.name = entry.name, .backend = entry.name, .usable = false, .reason = entry.absent()});
  }
  return devices;
}

std::vector<std::string> list_backends() {
  std::vector<std::string> lines;
  for (const Entry& entry : kBackends) {
    const std::string reason = entry.absent();
    lines.push_back(reason.empty() ? entry.name : fmt::format("{} (absent: {})", entry.name, reason));
  }
  return lines;
}

}  // namespace moesaic
