// The backend interface: coarse ops, because fusion happens inside them, and the graph (model/forward) is
// written once. Activations live in an arena that the backend owns; the graph names no temporaries.
//
// Thread-safety: one thread drives a backend. Errors of load, alloc_kv and begin_step come back as Status;
// the ops between begin_step and end_step only record or run work on validated input, and a device fault
// surfaces once, from end_step or from sampled.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/exchange.h"
#include "base/memory.h"
#include "core/batch.h"
#include "core/logit_edits.h"
#include "core/model_config.h"
#include "core/weights.h"
#include "moesaic/device.h"
#include "moesaic/status.h"
#include "moesaic/types.h"

namespace moesaic {

// The format in memory of a dense matrix that is stored as `stored`, where another one may be wanted. MXFP4
// is kept.
inline Format made_of(Format stored, std::optional<Format> wanted) {
  return is_mxfp4(stored) ? stored : wanted.value_or(stored);
}
// Bytes that a matrix of so many takes in it.
inline double bytes_made_of(double bytes, Format stored, std::optional<Format> wanted) {
  return bytes * bits_per_element(made_of(stored, wanted)) / bits_per_element(stored);
}
// Format of K and V in the cache. kOwn: the backend's (cuda BF16, reference F32, cpu 8 and 16 bit integers);
// kFp8: E4M3 without a scale, rounded to nearest even and saturating at 448.
enum class KvFormat { kOwn, kBf16, kFp8 };

// How MXFP4 experts are computed, and dense matrices in MXFP4 or MXFP8. kW4A8: activations are rounded to
// MXFP8. On cuda by kernels/sm120/: SM120 and SM121 have the instruction, Hopper emulates it. cpu and
// reference round in the same way (backend/rounding.h). kW4A8x2: the same with two MXFP8 values for each
// activation, the second being what the first one's rounding leaves: BF16 values stay what they are. kFp8: on
// Ada and Hopper, and there for the experts of many rows alone, activations are rounded to E4M3 with one
// scale for all, that of the F16 rows.
enum class MoePath { kAuto, kW4A8, kW4A8x2, kFp8 };
inline bool is_w4a8(MoePath path) { return path == MoePath::kW4A8 || path == MoePath::kW4A8x2; }
inline int mxfp8_parts(MoePath path) { return path == MoePath::kW4A8x2 ? 2 : 1; }
// From the names on the command line: keep (nothing) or a FormatInfo::option; auto, bf16, fp8; auto, w4a8,
// w4a8x2, fp8.
Result<std::optional<Format>> dense_format(std::string_view name);
Result<KvFormat> kv_format(std::string_view name);
Result<MoePath> moe_path(std::string_view name);

inline constexpr double kGib = 1024.0 * 1024 * 1024;

// cuda: where the experts' weights are. By whole layers; the device has the first ones.
struct ExpertPlacement {
  static constexpr int kAllLayers = -1;
  bool automatic = false;  // as many layers in host memory as do not fit on the device
  int host_layers = 0;     // else so many, or kAllLayers
  // Steps of so many rows or more bring those layers' experts to the device; in others the CPU computes.
  // kMeasured: where that is quicker, as measured when the model is loaded.
  static constexpr int kMeasured = 0, kNever = -1;
  int stream_rows = kMeasured;
  // So many experts of each of those layers are on the device as well: those that are chosen most
  // (backend/hot_experts.h). A request's bits then depend on what was chosen before it.
  int hot = 0;
  // Layers that a model of so many leaves to the host where nothing is automatic.
  int asked_of(int layers) const {
    return host_layers == kAllLayers ? layers : std::min(host_layers, layers);
  }
};
// From the names on the command line: gpu, auto, host (all layers) or host:LAYERS, and behind one of them
// ",stream:ROWS" or ",stream:never", and ",hot:EXPERTS". Empty: auto where the memory of the device is
// limited (BackendOptions::gpu_memory), else gpu.
Result<ExpertPlacement> expert_placement(std::string_view name, double gpu_memory);

// Sees the router's logits of every row, in order, on the thread that drives the backend: to find
// where two backends choose different experts. Slow on devices.
using RouterTrace = std::function<void(int layer, int row, std::span<const float> logits)>;

// Rows of a step at which prefill runs at full speed on a host.
inline constexpr int kHostPrefillRows = 512;

struct BackendOptions {
  int device = 0;            // cuda only: the index
  std::vector<int> devices;  // cuda: of each rank; empty: `device` and those behind it
  // Ranks that compute the model together, each with its part of the weights (docs/design/parallel.md).
  // `rank` is for the backend of one of them.
  int tp = 1;
  RankPlace rank;
  // cuda: this rank's part of its GPU's multiprocessors, of `count` equal ones: ranks may share a GPU.
  struct Part {
    int index = 0, count = 1;
  };
  Part part = {};
  // cpu: as many ranks as the machine has NUMA nodes with threads, each with its threads and its memory on
  // one.
  bool rank_per_node = false;
  // cpu, and cuda's experts in host memory: of all ranks together; 0: one per core, within affinity and
  // cgroup quota (base/cpu_topology.h)
  int threads = 0;
  // cpu: on a machine with several NUMA nodes each worker stays on the CPUs of one.
  bool cpu_pin = true;
  // cpu: the folder that holds the machine's /sys and /proc, "" but in tests.
  std::string system_root;
  std::optional<Format> dense;  // the format of projections and lm_head in memory; nothing: as stored
  MoePath moe_path = MoePath::kAuto;
  // cuda: only kernels that every device has (attention and dense products by mma.sync): the default before
  // Hopper and on 12.x. Batch-invariant.
  bool portable = false;
  // cuda: false leaves wgmma out, as on devices of 10.x, which have the other kernels of Hopper.
  bool wgmma = true;
  KvFormat kv = KvFormat::kOwn;  // cpu: its own only
  int max_rows = 2048;  // rows of the largest batch; 0: what prefill needs for full speed, or least_rows
  int least_rows = 1;
  // cpu, and cuda's experts in host memory: auto, amx, avx512, avx512vnni, avx512bw, avxvnni, avx2, bf16,
  // i8mm, dotprod, scalar, amx_emulated
  std::string isa = "auto";
  // cuda: a request's logits are the same bits in any batch and any chunk of a prompt. Otherwise small and
  // large batches use kernels that round differently (docs/design/numerics.md).
  bool batch_invariant = false;
  RouterTrace router_trace = nullptr;
  // Where measurements are kept: on cuda those of `moesaic tune`, on the cpu also those made when a model is
  // loaded. Empty: nowhere.
  std::string tuning_folder;
  // cuda: kernels for the experts are measured at a load where none are kept for this device. Never with
  // batch_invariant.
  bool tune = true;
  // cuda: after so many seconds a step that has not ended fails, and the device counts as lost; 0: never.
  double step_limit = 120;
  // cuda: kernels may start before their predecessors have ended (programmatic dependent launch), where the
  // device can. False turns it off for the whole process.
  bool early_launch = true;
  // cuda: experts of some layers in host memory, which the CPU computes (host_placement.h), by `threads`
  // threads of the instruction set `isa`. On a host they are there anyway.
  ExpertPlacement experts;
  // cuda: bytes of the device's memory that a model may take, beside what CUDA itself does; 0: all that is
  // free.
  double gpu_memory = 0;
  // The part of each layer's experts that memory holds: Backend::hold_experts() sets it.
  double held_experts = 1;
  // cuda, for tests: the most multiprocessors that kernels with one CTA on each use; 0: all.
  int max_sms = 0;
  std::string cpu_prefetch = "auto";  // auto (measured), none, or a hint and a distance: t0:1024
};

struct BackendCaps {
  std::string name;  // "cpu (avx512, 2 threads)"
  int threads = 0;
  int prefill_rows = kHostPrefillRows;
  int max_rows = 2048;  // rows of the largest batch
  // Rows of a step in which requests decode, where nobody said how many: a gap between tokens lasts as long
  // as its step. 0: max_rows.
  int mixed_rows = 0;
  // Sequences decoded together where nobody says how many: with more of them each gets slower, and all
  // together hardly faster.
  int batch = 16;
  // The share of the memory beside the weights that a KV cache takes where nobody gave its size. Programs
  // share a host's memory; a GPU serves one.
  double cache_share = 0.5;
  // Activations are rounded to 16 bits whatever the weights are, and decoding may sum attention in another
  // order than prefill does.
  bool half_activations = false;
  // Experts of quantised weights may take int8 activations though others are 16 bits: those in host memory.
  bool int8_experts = false;
  // By whose rule activations are rounded (backend/rounding.h); kAuto: by none.
  MoePath rounding = MoePath::kAuto;
  double peak_flops = 0;     // for matrix products on 16-bit values, by the data sheet; 0: not stated
  double experts_flops = 0;  // the same for the experts' products, which may be on 8-bit values
  std::string reads = {};    // cpu, of a loaded model: how weights are read, and why so
  // cuda, of a loaded model: what was measured while it was loaded, and where that is kept; empty: nothing.
  std::string measured = {};
};

// The purpose of a part of memory: weights, K and V of tokens, or what steps work on.
enum class MemoryKind { kWeights, kCache, kWorkspace };
// A part of the memory that a model takes on a device: "experts", "KV cache".
struct MemoryPart {
  std::string name;
  double bytes = 0;
  MemoryKind kind = MemoryKind::kWeights;
};
inline constexpr const char *kExpertsPart = "experts", *kProjectionsPart = "attention projections",
                            *kHeadPart = "lm_head", *kEmbeddingPart = "embedding",
                            *kVectorsPart = "norms, biases, routers", *kAdaptersPart = "LoRA adapters",
                            *kLockedExpertsPart = "experts, page-locked",
                            *kHotPart = "hot experts of the host's layers",
                            *kStreamPart = "experts on their way to prompts", *kCachePart = "KV cache";

// load progress: parts done, parts in all: the tables, then each layer. False: load() ends with kCancelled.
using LoadProgress = std::function<bool(int done, int total)>;
// load() returns this at once where it is not ok.
inline Status report(const LoadProgress& progress, int done, int total) {
  if (!progress || progress(done, total)) return {};
  return Status(StatusCode::kCancelled, "loading was cancelled");
}

// Steps that were captured so far, as CUDA graphs are, and those that could not be and run without a graph.
struct StepCaptures {
  int64_t made = 0, failed = 0;
};

// Copies pages of the KV cache beside the steps, of all layers of a kind at a time. One thread uses it, any
// one, while the backend and its cache are there. No step in flight, nor one that begins meanwhile, may touch
// the page.
class KvCopier {
 public:
  virtual ~KvCopier() = default;
  // bytes: [layers, kv_page_bytes()] in an order of the copier's own, there when this returns.
  virtual Status read(std::span<const int> layers, int32_t page, std::span<std::byte> bytes) = 0;
  // Steps that begin after this has returned see the bytes.
  virtual Status write(std::span<const int> layers, int32_t page, std::span<const std::byte> bytes) = 0;
};

class DraftHead;      // draft_head.h
class HostPlacement;  // host_placement.h
class Profiler;       // profiling.h
class Tuner;          // tuner.h

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendCaps caps() const = 0;
  // Called from the thread that steps.
  virtual StepCaptures captures() const { return {}; }
  // The device that it runs on; memory_free as of now. From any thread.
  virtual DeviceInfo device() const;
  // Lines for people: what the machine has and what of it is used. May be empty.
  virtual std::vector<std::string> describe() const { return {}; }
  // Bytes that one token's K and V take in one layer, scales included.
  virtual double kv_token_bytes(const ModelConfig& config) const = 0;

  // The memory that the model and a cache of this layout will take, by part; known before anything is loaded.
  // By default the cache alone: weights are read from the mapped file.
  virtual std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                         const KvLayout& layout);
  // Bytes free for them now; infinite where the machine does not say.
  virtual double available_memory() const { return available_host_memory(); }

  // Before load(): memory holds this part of each layer's experts, above 0, and a step reads the others from
  // the model's file when it wants them. False: this backend holds all of its experts, and nothing changes.
  virtual bool hold_experts(double /*share*/) { return false; }
  virtual double held_experts() const { return 1; }

  // Repacks the weights into the backend's own order; afterwards the views are not read again. Fails with one
  // line for a tensor that holds a NaN scale, a non-finite value where the model needs a finite one, or for
  // lack of memory.
  virtual Status load(const ModelConfig& config, const ModelWeights& weights,
                      const LoadProgress& progress) = 0;
  virtual Status alloc_kv(const KvLayout& layout) = 0;

  // One page of one layer's KV cache as bytes, to be kept and put back later, between steps.
  // kv_page_format(): names layout and types, so that a page is only put back where it means the same; empty:
  // this backend cannot. kv_page_bytes(): of one page. Once the cache is allocated; a page must exist and a
  // span have kv_page_bytes().
  virtual std::string kv_page_format() const { return {}; }
  virtual size_t kv_page_bytes() const { return 0; }
  virtual Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes);
  virtual Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes);
  // Null: this backend cannot copy beside its steps. Once the cache is allocated.
  virtual std::unique_ptr<KvCopier> kv_copier() { return nullptr; }

  // True if a batch may have rows to sample. Such a step stays in flight after end_step: the next one may
  // begin, with rows whose tokens this one samples, before sampled() is called. Known once a model is loaded.
  virtual bool can_sample() const { return false; }
  // Waits for the earliest sampling step in flight, of which there are one or two. tokens: [logit_rows] as
  // sampled, with log-probabilities where they were asked for; -1 and none where a logit is not finite.
  // logits: [host_rows, vocab] of the same step. A fault of the step is an error here, after which no step
  // runs.
  virtual Status sampled(std::span<SampledToken> /*tokens*/, std::span<float> /*logits*/) { return {}; }
  // Waits for the sampling steps in flight, whose results nobody will take. A fault of theirs is an error
  // here. What a fault left in the KV cache is cleared: no copier may be at work.
  virtual Status forget_steps() { return {}; }

  // Changes logits of the step that was launched last, before the next one begins, and samples their rows
  // anew; at most once a step, if the backend can_edit().
  virtual bool can_edit() const { return false; }
  virtual Status edit_rows(std::span<const EditedRow> /*rows*/) { return {}; }

  // A step: begin, the ops in the order of model/forward, end. logits: [logit_rows, vocab], none if the batch
  // has rows to sample.
  virtual Status begin_step(const Batch& batch) = 0;
  virtual void embed() = 0;
  virtual void qkv(int layer) = 0;      // norm, QKV, bias, RoPE, append to pages
  virtual void attend(int layer) = 0;   // paged, grouped-query, sliding window, sinks
  virtual void project(int layer) = 0;  // output projection, residual
  virtual void moe(int layer) = 0;      // norm, route, plan, two grouped GEMMs, combine, residual
  virtual void unembed(std::span<float> logits) = 0;  // final norm, logits of the wanted rows
  // After the last op, true if the ops were recorded but cannot be run that way: the caller gives them again,
  // all of them, and they run one by one. Once in a step at most.
  virtual bool ops_again() { return false; }
  virtual Status end_step() = 0;

  // Optional interfaces; null: not of this backend.
  virtual Profiler* profiler() { return nullptr; }
  virtual Tuner* tuner() { return nullptr; }
  virtual DraftHead* draft_head() { return nullptr; }
  virtual HostPlacement* host_placement() { return nullptr; }
};

// Bytes of all layers' pages.
inline double kv_bytes(const KvLayout& layout, const ModelConfig& config, const Backend& backend) {
  double pages = 0;
  for (const bool sliding : config.sliding) pages += sliding ? layout.window_pages : layout.full_pages;
  return pages * layout.page_tokens * backend.kv_token_bytes(config);
}

inline std::vector<MemoryPart> Backend::memory(const ModelConfig& config, const ModelWeights&,
                                               const KvLayout& layout) {
  return {{kCachePart, kv_bytes(layout, config, *this), MemoryKind::kCache}};
}

// Bytes as DeviceInfo has them.
inline int64_t device_bytes(double bytes) { return std::isfinite(bytes) ? static_cast<int64_t>(bytes) : -1; }
// A device whose memory is the host's.
inline DeviceInfo host_device(const std::string& backend) {
  return {.name = backend,
          .backend = backend,
          .memory_total = device_bytes(total_host_memory()),
          .memory_free = device_bytes(available_host_memory())};
}
inline DeviceInfo Backend::device() const { return host_device(caps().name); }

inline Status Backend::read_kv_page(int, int32_t, std::span<std::byte>) {
  return Status(StatusCode::kUnsupported, caps().name + ": its KV cache cannot be saved");
}
inline Status Backend::write_kv_page(int, int32_t, std::span<const std::byte>) {
  return Status(StatusCode::kUnsupported, caps().name + ": a KV cache cannot be loaded into it");
}

// device: "auto", "cpu", "reference", "cuda", "cuda:1". An unknown or absent device is an error that lists
// the known.
Result<std::unique_ptr<Backend>> create_backend(const std::string& device, const BackendOptions& options);
// Why "auto" gives no GPU; empty where it does.
std::string no_gpu_reason();
// The GPU code that this build carries; empty: it has no CUDA backend.
std::string gpu_code();
// Names a user may ask for, each with a line on whether this machine has it.
std::vector<std::string> list_backends();

}  // namespace moesaic
