#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "backend/break_even.h"
#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/driver.h"
#include "backend/cuda/runtime/free_memory.h"
#include "backend/cuda/runtime/peak_flops.h"
#include "backend/cuda/weights/load.h"
#include "backend/hot_counts.h"
#include "base/error.h"

namespace moesaic {
namespace cuda {

CudaBackend::~CudaBackend() {
  keep_hot_counts();
  if (device_is_lost()) return;
  const DeviceGuard guard(options_.device);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  graphs_.drop();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

namespace {

// Kernels for fewer rows need what layers without experts do not have (Layer::slab_hidden).
constexpr int kLeastStreamRows = kSlabRows + 1;

// Other code of the process may have begun to use CUDA before prepare_cuda_ranks().
Status check_loading() {
  constexpr unsigned kSince = 11070;
  auto* const get = driver_function<decltype(cuModuleGetLoadingMode)>("cuModuleGetLoadingMode", kSince);
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  if (get != nullptr) get(&mode);
  if (mode == CU_MODULE_EAGER_LOADING) return {};
  return error(StatusCode::kUnsupported,
               "--tp: this process has used CUDA before; set CUDA_MODULE_LOADING=EAGER when it starts");
}

std::string version_text(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

// Without what needs a context on the device.
DeviceInfo device_info(int device) {
  DeviceInfo info{.name = fmt::format("cuda:{}", device), .backend = "cuda"};
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, device) != cudaSuccess) {
    cudaGetLastError();
    return info;
  }
  info.description = p.name;
  info.architecture = fmt::format("sm_{}{}", p.major, p.minor);
  info.memory_total = static_cast<int64_t>(p.totalGlobalMem);
  return info;
}

}  // namespace

DeviceInfo CudaBackend::device() const {
  DeviceInfo info = device_info(options_.device);
  info.memory_total /= options_.part.count;
  info.memory_free = device_bytes(available_memory());
  return info;
}

std::vector<std::string> CudaBackend::describe() const {
  const DeviceGuard guard(options_.device);
  int driver = 0, runtime = 0, processors = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, options_.device);
  return {
      fmt::format("CUDA          driver for {}, program of {}", version_text(driver), version_text(runtime)),
      fmt::format("features      {}; {} multiprocessors", cuda::describe(target_.features), processors),
      fmt::format("kernels       {}{}; early launch {}",
                  target_.portable                ? "for every GPU"
                  : target_.features.have(kWgmma) ? "Hopper's"
                                                  : "Hopper's for few rows",
                  target_.batch_invariant ? ", batch-invariant" : "", early_launches() ? "on" : "off")};
}

// The CPU computes all that is in host memory where requests are batch-invariant: a row's bits must not
// depend on how many rows there are beside it.
Status CudaBackend::check_streaming() {
  if (!options_.batch_invariant) return {};
  if (options_.experts.hot > 0)
    return error(StatusCode::kUnsupported,
                 "--experts: hot experts change a request's bits with what came before it; leave out ,hot or "
                 "--batch-invariant");
  if (options_.experts.stream_rows > 0)
    return error(StatusCode::kUnsupported,
                 "--experts: with --batch-invariant the CPU computes prompts, too; use ,stream:never");
  options_.experts.stream_rows = ExpertPlacement::kNever;
  return {};
}

// Kernels with one CTA on each multiprocessor get as many CTAs as the part has multiprocessors. Each of eight
// parts of an H200 has too few for clusters of 16, which Hopper's own kernels need.
Status CudaBackend::open_part(const Features& features) {
  RETURN_IF_ERROR(part_.open(options_.part.index, options_.part.count));
  ASSIGN_OR_RETURN(stream_, part_.make_stream());
  if (options_.part.count == 1) return {};
  options_.max_sms = part_.multiprocessors();
  if (features.have(kLargeClusters) && !runs_clusters(16, stream_)) options_.portable = true;
  return {};
}

Status CudaBackend::open() {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, options_.device), "device"));
  if (!options_.rank.alone()) RETURN_IF_ERROR(check_loading());
  ASSIGN_OR_RETURN(const Features features, features_of_device(options_.device));
  RETURN_IF_ERROR(open_part(features));
  RETURN_IF_ERROR(check_moe_path(features, options_, properties.name));
  if (!options_.early_launch) set_early_launches(false);
  RETURN_IF_ERROR(check_streaming());
  target_ = target_of(features, options_);
  int kilohertz = 0;
  RETURN_IF_ERROR(check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, options_.device), "device"));
  peak_flops_ =
      peak_flops(features.major, features.minor, properties.name, part_.multiprocessors(), kilohertz * 1e3);
  name_ = fmt::format("cuda:{} ({}, sm_{}{})", options_.device, properties.name, properties.major,
                      properties.minor);
  reset_profile();
  free_at_start_ = free_memory();
  return {};
}

namespace {

// Joins the sentences that are not empty.
std::string joined(std::initializer_list<std::string> sentences) {
  std::string all;
  for (const std::string& s : sentences) all.append(all.empty() || s.empty() ? "" : "; ").append(s);
  return all;
}

}  // namespace

BackendCaps CudaBackend::caps() const {
  // On an H100 the 20b decodes 37,500 tokens a second at 512 sequences, 27,000 at 256 and 46,000 at 1,024.
  constexpr int kBatch = 512;
  constexpr double kCacheShare = 0.9;
  constexpr int kMixedRows = 2048;  // some 30 ms
  const bool in_fp8 = options_.moe_path == MoePath::kFp8 ||
                      (options_.moe_path == MoePath::kW4A8 && target_.features.have(kBlockScaledMma));
  return {.name = name_,
          .threads = 1,
          .prefill_rows = cuda_prefill_rows(options_),
          .max_rows = options_.max_rows,
          .mixed_rows = kMixedRows,
          .batch = kBatch,
          .cache_share = kCacheShare,
          .half_activations = true,
          .int8_experts =
              placed() ? host_layers() > 0 : options_.experts.automatic || options_.experts.host_layers != 0,
          .rounding = options_.moe_path,
          .peak_flops = peak_flops_,
          .experts_flops = in_fp8 ? 2 * peak_flops_ : peak_flops_,
          .measured = joined({measured_, measured_stream_, hot_begin_,
                              host_.experts() != nullptr ? host_.experts()->reads() : std::string()})};
}

namespace {

// Kernels that have run, captured graphs, and the last page of each of the KV cache's buffers: 50 MB with the
// 20b and 110 MB with the 120b on an H100.
constexpr double kCodeBytes = 160e6;

}  // namespace

std::vector<MemoryPart> CudaBackend::memory(const ModelConfig& config, const ModelWeights& weights,
                                            const KvLayout& layout) {
  const DeviceGuard guard(options_.device);
  std::vector<MemoryPart> parts =
      count_model(config, weights, options_, paths_of(config, weights, options_), host_layers());
  const double arena_bytes = sum(arena(config)) + sum(moe_.buffers(config, options_.max_rows));
  parts.push_back({"activations", arena_bytes, MemoryKind::kWorkspace});
  parts.push_back({kCachePart, kv_bytes(layout, config, *this), MemoryKind::kCache});
  parts.push_back(
      {"logits", static_cast<double>(logit_bytes(config, layout.logit_rows)), MemoryKind::kWorkspace});
  parts.push_back({"code and graphs", kCodeBytes, MemoryKind::kWorkspace});
  if (draft_head_.loaded()) std::ranges::copy(draft_head_.memory(layout), std::back_inserter(parts));
  return parts;
}

double CudaBackend::available_memory() const {
  const DeviceGuard guard(options_.device);
  const double free = free_memory() / options_.part.count;
  if (options_.gpu_memory <= 0) return free;
  return std::clamp(options_.gpu_memory - (free_at_start_ - free), 0.0, free);
}

// Packed experts take what they take in the file.
std::vector<MemoryPart> CudaBackend::host_memory(const ModelConfig& config,
                                                 const ModelWeights& weights) const {
  if (host_layers() == 0) return {};
  double bytes = 0, adapters = 0;
  for (int layer = config.layers - host_layers(); layer < config.layers; ++layer) {
    bytes += host_expert_bytes(weights.layers[layer]) * options_.held_experts;
    adapters += host_adapter_bytes(adapter_of(weights, layer));
  }
  const bool locked = may_stream(weights, options_, host_layers()) ||
                      hot_experts(config, weights, options_, host_layers()) > 0;
  std::vector<MemoryPart> parts = {
      {locked ? kLockedExpertsPart : kExpertsPart, bytes},
      {"hand-overs, page-locked", HostExchange::pinned_bytes(config, options_.max_rows),
       MemoryKind::kWorkspace}};
  if (adapters > 0) parts.push_back({kAdaptersPart, adapters});
  return parts;
}

// Programs that load a model without a plan get what was asked for: where that is automatic, as many layers
// as do not fit beside what else a step needs, a cache not counted.
void CudaBackend::place_as_asked(const ModelConfig& config, const ModelWeights& weights) {
  if (placed()) return;
  if (!options_.experts.automatic) return place(options_.experts.asked_of(config.layers));
  const double room = available_memory();
  for (int layers = 0; layers <= config.layers; ++layers) {
    place(layers);
    double bytes = 0;
    for (const MemoryPart& part : memory(config, weights, {})) bytes += part.bytes;
    if (bytes <= room) return;
  }
}

Result<std::unique_ptr<HostExperts>> CudaBackend::make_host_experts(const ModelWeights& weights) const {
  if (host_layers() == 0) return std::unique_ptr<HostExperts>();
  ASSIGN_OR_RETURN(std::unique_ptr<HostExperts> experts, create_host_experts(options_));
  experts->hold(options_.held_experts, weights);
  return experts;
}

// Copies to the device need a layer's experts whole and in place.
bool CudaBackend::hold_experts(double share) {
  options_.held_experts = share;
  if (share < 1) options_.experts.stream_rows = ExpertPlacement::kNever, options_.experts.hot = 0;
  return true;
}

Status CudaBackend::load(const ModelConfig& config, const ModelWeights& weights,
                         const LoadProgress& progress) {
  const DeviceGuard guard(options_.device);
  RETURN_IF_ERROR(guard.status());
  draft_head_.unload();
  keep_hot_counts();
  hot_.close();
  expert_stream_.close();
  stream_rows_ = 0, measured_stream_.clear(), hot_begin_.clear();
  host_.close();
  model_ = {};
  place_as_asked(config, weights);
  ASSIGN_OR_RETURN(std::unique_ptr<HostExperts> host, make_host_experts(weights));
  ASSIGN_OR_RETURN(model_,
                   load_model(config, weights, options_, progress, stream_, host_layers(), host.get()));
  RETURN_IF_ERROR(allocate(arena(config), "activations"));
  RETURN_IF_ERROR(allocate(moe_.buffers(config, options_.max_rows), "the experts' activations"));
  RETURN_IF_ERROR(ranks_.open(options_.rank, options_.device, part_, fault_.as<int>()));
  RETURN_IF_ERROR(moe_.ready(config, options_.max_rows, fault_.as<int>(), ranks_));
  if (host) RETURN_IF_ERROR(open_host(std::move(host), weights));
  RETURN_IF_ERROR(find_ranks());
  ASSIGN_OR_RETURN(pinned_fault_, PinnedBuffer::allocate(sizeof(int)));
  *pinned_fault_.as<int>() = 0;
  RETURN_IF_ERROR(step_io_.open(options_.max_rows, config.vocab));
  const auto sampling = select(SampleShape{config.vocab}, target_);
  sample_ctas_ = sampling.ok() ? sampling.value()->ctas : 0;
  tune_experts();
  return check(cudaStreamSynchronize(stream_), "activations");
}

Status CudaBackend::open_host(std::unique_ptr<HostExperts> experts, const ModelWeights& weights) {
  const ModelConfig& c = model_.config;
  RETURN_IF_ERROR(experts->ready());
  RETURN_IF_ERROR(host_.open(std::move(experts), c, host_layers(), options_.max_rows, fault_.as<int>()));
  if (model_.stream.count + model_.hot_experts == 0) return {};
  RETURN_IF_ERROR(expert_stream_.open(model_, *host_.experts(), stream_));
  if (model_.hot_experts > 0) RETURN_IF_ERROR(open_hot(weights));
  if (model_.stream.count == 0) return {};
  stream_rows_ = std::max(options_.experts.stream_rows, kLeastStreamRows);
  if (options_.experts.stream_rows != ExpertPlacement::kMeasured) return {};
  ASSIGN_OR_RETURN(stream_rows_, break_even());
  return {};
}

Status CudaBackend::open_hot(const ModelWeights& weights) {
  hot_key_ = hot_counts_key(model_.config, weights);
  const bool kept = read_hot_counts(options_.tuning_folder, hot_key_, host_.use());
  hot_begin_ = kept ? "hot experts are at first those of the last run"
                    : "hot experts are at first any: no counts are kept of this model";
  return hot_.open(model_, expert_stream_, host_.use(), options_.max_rows, stream_);
}

// Failing loses what the next run would begin with, and nothing else.
void CudaBackend::keep_hot_counts() {
  if (hot_.there()) static_cast<void>(write_hot_counts(options_.tuning_folder, hot_key_, host_.use()));
}

// The rows of a hand-over cross as well, there and back. Beyond kMost rows even slow PCIe is quicker than a
// CPU.
Result<int> CudaBackend::break_even() {
  ASSIGN_OR_RETURN(const double seconds, expert_stream_.seconds_a_layer());
  const double bytes_per_second = expert_stream_.layer_bytes() / seconds;
  const auto host = [&](int rows) -> Result<double> {
    ASSIGN_OR_RETURN(const double computed, time_host_experts(*host_.experts(), 0, model_.config, rows));
    return computed + 8.0 * rows * model_.config.hidden / bytes_per_second;
  };
  constexpr int kMost = 4096;
  ASSIGN_OR_RETURN(const int rows, break_even_rows(seconds, {kLeastStreamRows, kMost}, host));
  measured_stream_ = fmt::format(
      "steps of {} tokens or more bring experts to the GPU: a layer comes in {:.2f} ms, {:.1f} GB/s, as "
      "measured now; {:.2f} GB are page-locked{}",
      rows, seconds * 1e3, bytes_per_second / 1e9, expert_stream_.locked_bytes() / 1e9,
      expert_stream_.all_locked() ? "" : ", the system refuses to lock the others, which come slower");
  return rows;
}

// The other ranks' places for what they are handed.
Status CudaBackend::find_ranks() {
  ASSIGN_OR_RETURN(x_of_, ranks_.of_ranks(x_.as<float>()));
  ASSIGN_OR_RETURN(attended_of_, ranks_.of_ranks(attended_.as<uint32_t>()));
  for (Layer& layer : model_.layers) {
    ASSIGN_OR_RETURN(layer.slab_hidden_of, ranks_.of_ranks(layer.slab_hidden.as<void>()));
  }
  return {};
}

std::vector<Wanted> CudaBackend::arena(const ModelConfig& config) {
  const size_t rows = options_.max_rows;
  const int widest = std::max(config.hidden, config.q_size());
  const bool portable_prompts = target_.portable || !target_.features.have(kWgmma);
  return {
      {&x_, rows * config.hidden * 4},
      {&normed_, rows * config.hidden * 2},
      {&q_, rows * config.q_size() * 2},
      {&attended_, rows * config.q_size() * 2},
      {&tiles_, linear_tile_bytes(options_.max_rows, widest)},
      {&attended_part_, options_.rank.alone() ? 0 : rows * config.q_size() * 2},
      {&rotation_, rows * config.head_dim / 2 * sizeof(float2)},
      {&fault_, sizeof(int)},
      {&spans_, portable_prompts ? (kMostSpanGroups + kSpanFloats) * sizeof(float) : 0},
  };
}

Status CudaBackend::alloc_kv(const KvLayout& layout) {
  const DeviceGuard guard(options_.device);
  if (layout.page_tokens != kPageTokens)
    return invalid("cuda: pages hold {} tokens, not {}", kPageTokens, layout.page_tokens);
  RETURN_IF_ERROR(graphs_.retire("the KV cache", stream_));
  step_io_.forget();
  kv_layout_ = layout;
  for (int i = 0; i < model_.config.layers; ++i) {
    const size_t pages = model_.config.sliding[i] ? layout.window_pages : layout.full_pages;
    const size_t bytes = pages * kPageTokens * model_.layers[i].shape.kv_size() * kv_element_bytes();
    model_.layers[i].k = {}, model_.layers[i].v = {};
    ASSIGN_OR_RETURN(model_.layers[i].k, DeviceBuffer::allocate(bytes, "the KV cache"));
    ASSIGN_OR_RETURN(model_.layers[i].v, DeviceBuffer::allocate(bytes, "the KV cache"));
  }
  RETURN_IF_ERROR(allocate_logits(logit_bytes(model_.config, layout.logit_rows)));
  input_capacity_ = 32 * static_cast<size_t>(options_.max_rows) + layout.full_pages + layout.window_pages;
  return draft_head_.loaded() ? draft_head_.alloc_kv() : Status();
}

Status CudaBackend::allocate_logits(size_t bytes) {
  logits_ = {};
  if (bytes > 0) {
    ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(bytes, "logits"));
  }
  ASSIGN_OR_RETURN(logits_of_, ranks_.of_ranks(logits_.as<float>()));
  return {};
}

// kv_page.h has the layouts.
std::string CudaBackend::kv_page_format() const {
  return options_.kv == KvFormat::kFp8 ? "cuda fp8" : "cuda bf16 swizzled";
}

// K, then V. Behind the step in flight, if there is one.
Status CudaBackend::read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) {
  const DeviceGuard guard(options_.device);
  const size_t half = bytes.size() / 2, at = page * half;
  const Layer& l = model_.layers[layer];
  RETURN_IF_ERROR(
      check(cudaMemcpyAsync(bytes.data(), l.k.as<std::byte>() + at, half, cudaMemcpyDeviceToHost, stream_),
            "the KV cache"));
  RETURN_IF_ERROR(check(
      cudaMemcpyAsync(bytes.data() + half, l.v.as<std::byte>() + at, half, cudaMemcpyDeviceToHost, stream_),
      "the KV cache"));
  return wait_(stream_, "the KV cache");
}

Status CudaBackend::write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) {
  const DeviceGuard guard(options_.device);
  const size_t half = bytes.size() / 2, at = page * half;
  Layer& l = model_.layers[layer];
  RETURN_IF_ERROR(
      check(cudaMemcpyAsync(l.k.as<std::byte>() + at, bytes.data(), half, cudaMemcpyHostToDevice, stream_),
            "the KV cache"));
  RETURN_IF_ERROR(check(
      cudaMemcpyAsync(l.v.as<std::byte>() + at, bytes.data() + half, half, cudaMemcpyHostToDevice, stream_),
      "the KV cache"));
  return wait_(stream_, "the KV cache");
}

}  // namespace cuda

// A kernel that is loaded when it is first launched waits for those that run, which may wait for its rank.
// Streams that share one of the device's queues wait for each other, which ranks on one GPU must not: CUDA
// uses 8 queues unless told, and at most 32.
void prepare_cuda_ranks() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

std::string cuda_code() { return std::string(cuda::compiled_code()); }

std::string cuda_absent() {
  int devices = 0, driver = 0, runtime = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return cuda::no_code_for(0);
  cudaGetLastError();
  if (code != cudaErrorInsufficientDriver)
    return code == cudaSuccess ? "no CUDA device" : cudaGetErrorString(code);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "no NVIDIA driver is loaded";
  return fmt::format("the NVIDIA driver is for CUDA {}, this program needs {}: update the driver",
                     cuda::version_text(driver), cuda::version_text(runtime));
}

Status check_cuda_device(const char* op, int device) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    cudaGetLastError();
    return error(StatusCode::kUnsupported, "{}: {}", op, cuda_absent());
  }
  if (device < 0 || device >= devices)
    return invalid("{}: device cuda:{}: this machine has {}", op, device, devices);
  if (const std::string reason = cuda::no_code_for(device); !reason.empty())
    return error(StatusCode::kUnsupported, "{}: device cuda:{}: {}", op, device, reason);
  return {};
}

// On an H100 a step of 4,096 rows reads prompts of the 20b 8% faster than one of 2,048, and of the 120b,
// which reads all its experts in each, 16%; one of 8,192 rows is 5% and 9% faster again. Where a step's
// experts come over PCIe, one of 4,096 rows takes hardly longer than one of 2,048.
int cuda_prefill_rows(const BackendOptions& options) {
  constexpr double kLarge = 40e9, kLargest = 70e9;  // bytes
  const ExpertPlacement& experts = options.experts;
  const bool streams = (experts.automatic || experts.host_layers != 0) &&
                       experts.stream_rows != ExpertPlacement::kNever && !options.batch_invariant;
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, options.device) != cudaSuccess) cudaGetLastError();
  double bytes = static_cast<double>(p.totalGlobalMem);
  if (options.gpu_memory > 0) bytes = std::min(bytes, options.gpu_memory);
  if (bytes >= kLargest) return 8192;
  return streams || bytes >= kLarge ? 4096 : 2048;
}

std::vector<DeviceInfo> cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError(), count = 0;
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    DeviceInfo& info = devices.emplace_back(cuda::device_info(i));
    info.reason = cuda::no_code_for(i);
    info.usable = info.reason.empty();
  }
  return devices;
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions& options) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return error(StatusCode::kUnsupported, "device cuda: {}; use --device cpu", cuda_absent());
  if (options.device < 0 || options.device >= devices)
    return invalid("device cuda:{}: this machine has {}", options.device,
                   devices == 1 ? "one, cuda:0" : fmt::format("cuda:0 to cuda:{}", devices - 1));
  if (const std::string reason = cuda::no_code_for(options.device); !reason.empty())
    return error(StatusCode::kUnsupported, "device cuda:{}: {}; use --device cpu", options.device, reason);
  auto backend = std::make_unique<cuda::CudaBackend>(options);
  RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace moesaic
