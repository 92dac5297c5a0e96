// Model::open: from a path and options to a loaded model.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>

#include "api/bundled_model.h"
#include "api/choose_ranks.h"
#include "api/fingerprint.h"
#include "api/model_parts.h"
#include "api/option_words.h"
#include "api/tokenizer_source.h"
#include "base/error.h"
#include "base/file_cache.h"
#include "base/log.h"
#include "checkpoint/lora.h"
#include "drafting/make_drafter.h"
#include "engine/expert_placement.h"

namespace moesaic {
namespace {

constexpr int kMostThreads = 1024;
constexpr double kMostGib = 1 << 20;
constexpr int kMostDraftRows = 448;  // where nothing else bounds a step's: 28 drafts of the longest
constexpr int64_t kMostKvTokens = int64_t{1} << 35;  // fewer than 2^31 pages

Status named(const char* option, const Status& status) {
  return status.ok() ? status
                     : Status(status.code(), fmt::format("options.{}: {}", option, status.message()));
}

// Tells an option that cannot be from a file that cannot.
Status of_option(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? Status(StatusCode::kUsage, status.message())
                                                       : status;
}
template <typename T>
Result<T> of_option(Result<T> result) {
  return result.ok() ? std::move(result) : Result<T>(of_option(result.status()));
}

// An option for GPUs is no wrong one where the device is chosen here and no GPU is ready.
Result<std::unique_ptr<Backend>> make_backend(const DeviceChoice& choice) {
  auto backend = create_backend(choice.device, choice.options);
  const std::string no_gpu = choice.device == "auto" ? no_gpu_reason() : "";
  if (backend.status().code() != StatusCode::kInvalidArgument || no_gpu.empty())
    return of_option(std::move(backend));
  return error(StatusCode::kUnsupported, "{}; no GPU is usable: {}", backend.status().message(), no_gpu);
}

Status check(const OpenOptions& o) {
  if (o.threads < 0 || o.threads > kMostThreads)
    return invalid("options.threads: {} threads; expected 0 to {}", o.threads, kMostThreads);
  if (o.context < 0) return invalid("options.context: {} tokens", o.context);
  if (o.max_batch < 0) return invalid("options.max_batch: {} requests", o.max_batch);
  if (o.max_rows < 0) return invalid("options.max_rows: {} tokens", o.max_rows);
  if (o.max_rows > 0 && o.max_rows < o.max_batch)
    return invalid("options.max_rows: {} is less than options.max_batch, {}", o.max_rows, o.max_batch);
  if (o.kv_tokens < 0) return invalid("options.kv_tokens: {} tokens", o.kv_tokens);
  if (o.tp < kRankPerNode || o.tp > kMostRanks)
    return invalid("options.tp: {} ranks; expected 1 to {}, {} (auto) or {} (one for each NUMA node)", o.tp,
                   kMostRanks, kAutoRanks, kRankPerNode);
  if (!(o.gpu_memory >= 0 && o.gpu_memory <= kMostGib))
    return invalid("options.gpu_memory: {} GiB; expected 0 to {}", o.gpu_memory, kMostGib);
  RETURN_IF_ERROR(named("experts", expert_placement(o.experts, o.gpu_memory).status()));
  RETURN_IF_ERROR(named("draft_tokens", validate_draft_tokens(o.draft_tokens)));
  RETURN_IF_ERROR(named("speculative", drafter_choice(o.speculative).status()));
  if (o.cpu_pin != "auto" && o.cpu_pin != "off")
    return invalid("options.cpu_pin: '{}'; it is auto or off", o.cpu_pin);
  return {};
}

Result<BackendOptions> backend_options(const OpenOptions& o) {
  const auto dense = dense_format(o.dense);
  const auto kv = kv_format(o.kv_dtype);
  const auto experts = moe_path(o.moe_path);
  RETURN_IF_ERROR(named("dense", dense.status()));
  RETURN_IF_ERROR(named("kv_dtype", kv.status()));
  RETURN_IF_ERROR(named("moe_path", experts.status()));
  return BackendOptions{.tp = o.tp,
                        .threads = o.threads,
                        .cpu_pin = o.cpu_pin == "auto",
                        .dense = dense.value(),
                        .moe_path = experts.value(),
                        .kv = kv.value(),
                        .max_rows = o.max_rows,
                        .least_rows = o.max_batch,
                        .batch_invariant = o.batch_invariant,
                        .tuning_folder = cache_folder(),
                        .tune = o.tune,
                        .experts = expert_placement(o.experts, o.gpu_memory).value(),
                        .gpu_memory = o.gpu_memory * kGib,
                        .cpu_prefetch = o.cpu_prefetch};
}

// Checks the sizes that only the model can tell to be wrong.
Status check_sizes(const OpenOptions& o, const ModelConfig& config) {
  if (o.context > config.max_context)
    return invalid("options.context: {} tokens; the model takes 1 to {}", o.context, config.max_context);
  if (o.kv_tokens > 0 && o.kv_tokens < kPageTokens)
    return invalid("options.kv_tokens: {} tokens; at least a page of {}", o.kv_tokens, kPageTokens);
  if (o.kv_tokens > 0 && o.kv_tokens < o.context)
    return invalid("options.kv_tokens: {} tokens are too few for options.context, {}", o.kv_tokens,
                   o.context);
  if (o.kv_tokens > kMostKvTokens)
    return invalid("options.kv_tokens: {} tokens; at most {}", o.kv_tokens, kMostKvTokens);
  return {};
}

const char* words(ContextLimit limit) {
  switch (limit) {
    case ContextLimit::kAsked:
      return "asked for";
    case ContextLimit::kModel:
      return "the model's maximum";
    case ContextLimit::kCache:
      return "the KV cache's size";
    case ContextLimit::kMemory:
      break;
  }
  return "memory";
}

std::string share_words(double share) {
  return share == 0.5 ? "half of the free memory" : fmt::format("{:.0f}% of the free memory", 100 * share);
}

// Chooses rows and sequences where nobody said how many, and says why.
const char* choose_batch(EngineOptions& o, const Checkpoint& c, Backend& backend) {
  if (o.max_rows == 0) o.max_rows = backend.caps().max_rows, o.mixed_rows = backend.caps().mixed_rows;
  const bool asked = o.max_batch > 0;
  if (!asked) o.max_batch = fitting_batch({.max_rows = o.max_rows}, c.config, c.weights, backend);
  // Where all places are taken, a prompt still goes on.
  if (o.mixed_rows > 0)
    o.mixed_rows = std::min(o.max_rows, std::max(o.mixed_rows, o.max_batch + kPageTokens));
  if (asked) return "asked for";
  return o.max_batch == std::min(backend.caps().batch, o.max_rows) ? "as many as pay on this device"
                                                                   : "memory";
}

// context(demand) and kv_tokens(demand) choose what was not asked for.
template <typename Context, typename KvTokens>
Status choose(EnginePlan& plan, const ModelConfig& config, const Backend& backend, Context&& context,
              KvTokens&& kv_tokens) {
  const EngineOptions& wanted = plan.wanted;
  const ContextChoice chosen =
      wanted.context == 0 ? context(kv_demand(wanted)) : ContextChoice{.tokens = wanted.context};
  plan.options = wanted;
  plan.options.context = chosen.tokens;
  ASSIGN_OR_RETURN(plan.demand, Engine::demand(config, plan.options));
  ModelInfo& info = plan.info;
  info.kv_reason = "asked for";
  if (wanted.kv_tokens == 0) {
    plan.demand.kv_tokens = kv_tokens(plan.demand);
    const bool all = plan.demand.kv_tokens == int64_t{chosen.tokens} * wanted.max_batch,
               one = plan.demand.kv_tokens == chosen.tokens;
    info.kv_reason = all   ? "a context for each of max_batch"
                     : one ? "one context"
                           : share_words(backend.caps().cache_share);
  }
  plan.options.kv_tokens = info.kv_tokens = plan.demand.kv_tokens;
  info.context = chosen.tokens, info.context_reason = words(chosen.limit);
  info.max_batch = wanted.max_batch, info.max_rows = wanted.max_rows, info.mixed_rows = wanted.mixed_rows;
  return {};
}

MemoryUse memory_use(const std::vector<MemoryPart>& parts) {
  const auto bytes = [&](MemoryKind kind) { return static_cast<int64_t>(bytes_of(parts, kind)); };
  return {.weights = bytes(MemoryKind::kWeights),
          .kv_cache = bytes(MemoryKind::kCache),
          .workspace = bytes(MemoryKind::kWorkspace)};
}

Result<EnginePlan> plan_on(const Checkpoint& c, EngineOptions wanted, const BackendOptions& made_with,
                           DraftParts* drafts, Backend& backend) {
  const auto place = [&] {
    KvDemand demand = least_demand(kv_demand(wanted), c.config);
    if (demand.max_rows == 0) demand.max_rows = backend.caps().max_rows;
    return place_experts(demand, c.config, c.weights, backend);
  };
  RETURN_IF_ERROR(place());
  const std::string batch_reason = choose_batch(wanted, c, backend);
  if (drafts != nullptr && drafts->name() != "none")
    wanted.draft_rows = std::min(wanted.max_batch * kMostDraft, kMostDraftRows);
  if (drafts != nullptr) {
    BackendOptions beside = made_with;
    beside.experts = {}, beside.gpu_memory = 0, beside.max_rows = wanted.max_rows;
    ASSIGN_OR_RETURN(wanted.draft, drafts->plan(backend, beside, wanted));
    if (wanted.draft.weights > 0) RETURN_IF_ERROR(place());
  }
  EnginePlan plan{.options = wanted,
                  .demand = {},
                  .info = {.name = c.config.name,
                           .device = backend.device(),
                           .tp = made_with.tp,
                           .batch_reason = batch_reason,
                           .speculative = drafts != nullptr ? drafts->name() : "none",
                           .draft_tokens = wanted.draft_tokens,
                           .experts = placement_words(c.config, c.weights, backend)},
                  .wanted = wanted};
  RETURN_IF_ERROR(choose(
      plan, c.config, backend,
      [&](const KvDemand& d) { return fitting_context(d, c.config, c.weights, backend); },
      [&](const KvDemand& d) { return fitting_kv_tokens(d, c.config, c.weights, backend); }));
  RETURN_IF_ERROR(plan_memory(plan.demand, c.config, c.weights, backend));
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(c.config, plan.demand));
  plan.info.memory = memory_use(parts_of(plan.demand, c.config, c.weights, layout, backend));
  plan.info.stored_bytes = static_cast<int64_t>(stored_bytes(c.weights).sum());
  return plan;
}

// Bytes of the weights, as the parts of a LoadProgress have been loaded.
class ByteProgress {
 public:
  ByteProgress(const ModelWeights& weights, const std::function<bool(int64_t, int64_t)>& tell)
      : weights_(weights), tell_(tell), total_(stored_bytes(weights).sum()) {}
  bool operator()(int done, int) {
    const double bytes = done > 0 ? total_ - bytes_of(static_cast<size_t>(done - 1)) : 0;
    return !tell_ || tell_(static_cast<int64_t>(bytes), static_cast<int64_t>(total_));
  }

 private:
  // Bytes of the layers from `first` on.
  double bytes_of(size_t first) const {
    ModelWeights rest;
    rest.layers.assign(weights_.layers.begin() + static_cast<std::ptrdiff_t>(first), weights_.layers.end());
    return stored_bytes(rest).sum();
  }
  const ModelWeights& weights_;
  const std::function<bool(int64_t, int64_t)>& tell_;
  double total_;
};

Result<Model> open_model(const std::string& path, const OpenOptions& o) {
  RETURN_IF_ERROR(of_option(check(o)));
  ASSIGN_OR_RETURN(const KvStoreOptions kept, of_option(kv_store_options(o.kv_host, o.kv_disk)));
  RETURN_IF_ERROR(check_kv_store(kept, o.prefix_cache));
  ASSIGN_OR_RETURN(const BackendOptions device, of_option(backend_options(o)));
  for (const std::string& adapter : o.lora)
    RETURN_IF_ERROR(of_option(named("lora", lora_choice(adapter).status())));
  DeviceChoice choice{o.device, device};
  std::unique_ptr<Backend> backend;
  if (o.tp > 0) {
    ASSIGN_OR_RETURN(backend, make_backend(choice));
  }
  ASSIGN_OR_RETURN(const std::string folder, model_path(path));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(folder));
  RETURN_IF_ERROR(named("lora", apply_lora(o.lora, checkpoint.config, checkpoint.weights)));
  RETURN_IF_ERROR(of_option(check_sizes(o, checkpoint.config)));
  if (backend == nullptr) {
    RETURN_IF_ERROR(of_option(settle_ranks(checkpoint, o.context, one_rank_reason(o.speculative), choice)));
    ASSIGN_OR_RETURN(backend, make_backend(choice));
  }
  auto tokenizer = tokenizer_for(checkpoint, o.tokenizer);
  RETURN_IF_ERROR(o.tokenizer.empty() ? tokenizer.status() : named("tokenizer", tokenizer.status()));
  const EngineOptions wanted{.context = o.context,
                             .max_batch = o.max_batch,
                             .max_rows = o.max_rows,
                             .kv_tokens = o.kv_tokens,
                             .prefix_cache = o.prefix_cache,
                             .draft_tokens = o.draft_tokens};
  auto drafts = DraftParts::open(o.speculative, checkpoint);
  RETURN_IF_ERROR(named("speculative", drafts.status()));
  ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(checkpoint, wanted, choice, backend, &drafts.value()));
  ByteProgress progress(checkpoint.weights, o.progress);
  RETURN_IF_ERROR(report(std::ref(progress), 0, 0));
  ASSIGN_OR_RETURN(KvTiers tiers, KvTiers::open(kept));
  RETURN_IF_ERROR(load_weights(checkpoint, plan.demand, *backend, std::ref(progress)));
  RETURN_IF_ERROR(named("speculative", drafts->load(*backend, checkpoint)));
  RETURN_IF_ERROR(fit_again(plan, checkpoint, *backend));
  plan.info.measured = backend->caps().measured;
  for (const std::string& line : describe(plan.info)) log(LogLevel::kInfo, line);
  const uint64_t print =
      fingerprint(checkpoint, kv_arithmetic(o.dense, o.moe_path, o.batch_invariant, *backend));
  if (checkpoint.weights.intact) RETURN_IF_ERROR(checkpoint.weights.intact());
  ASSIGN_OR_RETURN(auto drafter, drafts->drafter(*backend, plan.options));
  ASSIGN_OR_RETURN(Engine engine,
                   Engine::create(*backend, checkpoint.config, plan.options, std::move(drafter)));
  RETURN_IF_ERROR(engine.keep(std::move(tiers), print));
  if (o.on_kv_event && o.prefix_cache) engine.kv_state(print).pages->watch(o.on_kv_event);
  return make_model({.config = checkpoint.config,
                     .backend = std::move(backend),
                     .tokenizer = std::move(tokenizer).value(),
                     .engine = std::move(engine),
                     .info = plan.info,
                     .fingerprint = print});
}

std::string size_words(int64_t bytes) {
  if (bytes < 0) return "unknown";
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

std::string words(const MemoryUse& m) {
  const std::string workspace = m.workspace > 0 ? ", workspace " + size_words(m.workspace) : "";
  return fmt::format("weights {}, KV cache {}{}", size_words(m.weights), size_words(m.kv_cache), workspace);
}

}  // namespace

Result<EnginePlan> plan_engine(const Checkpoint& checkpoint, const EngineOptions& wanted,
                               const DeviceChoice& choice, std::unique_ptr<Backend>& backend,
                               DraftParts* drafts) {
  const bool chosen = choice.device == "auto";
  const bool gpu = backend->device().backend == "cuda";
  std::string ranks = choice.ranks;
  std::string reason = !chosen ? "asked for"
                       : gpu   ? "the first usable"
                               : "no GPU is usable: " + no_gpu_reason();
  Result<EnginePlan> plan = plan_on(checkpoint, wanted, choice.options, drafts, *backend);
  if (chosen && gpu && plan.status().code() == StatusCode::kOutOfMemory) {
    reason = "no GPU is usable: " + plan.status().message();
    BackendOptions host = choice.options;
    host.experts = {}, host.gpu_memory = 0;
    if (!ranks.empty()) host.tp = 1, ranks = {};
    ASSIGN_OR_RETURN(backend, create_backend("cpu", host));
    plan = plan_on(checkpoint, wanted, host, drafts, *backend);
  }
  if (!plan.ok()) return plan;
  plan->info.device_reason = reason, plan->info.ranks = option_words(ranks);
  if (chosen && plan->info.device.backend != "cuda") log(LogLevel::kWarning, reason);
  return plan;
}

Status fit_again(EnginePlan& plan, const Checkpoint& checkpoint, Backend& backend) {
  constexpr double kShare = 0.95;  // share of the free memory: more is not taken unless it was asked for
  const EngineOptions& wanted = plan.wanted;
  if (wanted.context > 0 && (wanted.kv_tokens > 0 || wanted.max_batch == 1)) return {};
  const ModelConfig& config = checkpoint.config;
  ASSIGN_OR_RETURN(const KvLayout before, kv_layout(config, plan.demand));
  const double planned = kv_bytes(before, config, backend),
               free = free_for_cache(plan.demand, config, checkpoint.weights, backend);
  if (planned <= kShare * free) return {};
  RETURN_IF_ERROR(choose(
      plan, config, backend, [&](const KvDemand& d) { return fitting_context(free, d, config, backend); },
      [&](const KvDemand& d) { return fitting_kv_tokens(free, d, config, backend); }));
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(config, plan.demand));
  plan.info.memory.kv_cache += static_cast<int64_t>(kv_bytes(layout, config, backend) - planned);
  return {};
}

std::vector<std::string> describe(const ModelInfo& i) {
  const DeviceInfo& d = i.device;
  const std::string chip = d.description.empty() ? "" : " " + d.description;
  const std::string speculative =
      i.speculative == "none"
          ? "none"
          : fmt::format("{}, drafts of {} tokens", i.speculative,
                        i.draft_tokens == 0 ? "as many as pay" : std::to_string(i.draft_tokens));
  const std::string code = d.architecture.empty() ? "" : fmt::format(" ({})", d.architecture);
  std::vector<std::string> lines = {
      fmt::format("device {}:{}{}; {}", d.name, chip, code, i.device_reason),
      fmt::format("memory: {}; {} free", words(i.memory), size_words(d.memory_free)),
      fmt::format("context {} tokens: {}", i.context, i.context_reason),
      fmt::format("batch at most {} requests: {}; steps of at most {} tokens{}", i.max_batch, i.batch_reason,
                  i.max_rows,
                  i.mixed_rows > 0 ? fmt::format(", {} while requests decode", i.mixed_rows) : ""),
      fmt::format("KV cache {} tokens for all requests: {}", i.kv_tokens, i.kv_reason),
      fmt::format("speculative decoding: {}", speculative)};
  if (!i.ranks.empty()) lines.push_back(i.ranks);
  if (!i.experts.empty()) lines.push_back(i.experts);
  if (!i.measured.empty()) lines.push_back(i.measured);
  return lines;
}

Status load_weights(const Checkpoint& checkpoint, const KvDemand& cache, Backend& backend,
                    const LoadProgress& progress) {
  if (const HostPlacement* placement = backend.host_placement(); placement == nullptr || !placement->placed())
    RETURN_IF_ERROR(place_experts(cache, checkpoint.config, checkpoint.weights, backend));
  RETURN_IF_ERROR(plan_memory(cache, checkpoint.config, checkpoint.weights, backend));
  Status loaded = backend.load(checkpoint.config, checkpoint.weights, progress);
  if (loaded.code() == StatusCode::kCancelled) return loaded;
  // First, since weights that are not there may look damaged in other ways.
  if (checkpoint.weights.intact) RETURN_IF_ERROR(checkpoint.weights.intact());
  return loaded;
}

Result<Model> Model::open(const std::string& path, const OpenOptions& o) {
  try {
    return option_words(open_model(path, o));
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kOutOfMemory, "out of memory");
  }
}

}  // namespace moesaic
