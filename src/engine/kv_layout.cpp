#include "engine/kv_layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

namespace moesaic {

double bytes_of(const std::vector<MemoryPart>& parts) {
  double bytes = 0;
  for (const MemoryPart& p : parts) bytes += p.bytes;
  return bytes;
}

double bytes_of(const std::vector<MemoryPart>& parts, MemoryKind kind) {
  double bytes = 0;
  for (const MemoryPart& p : parts) bytes += p.kind == kind ? p.bytes : 0;
  return bytes;
}

namespace {

constexpr double kContextShare = 0.9;  // share of memory beside the weights, for a context that nobody gave
// The prefix cache's windows: those of one in four of the blocks in the cache. A conversation is asked for at
// two places, with four pages each, which are all that a short one has: at least those of four for each
// sequence, of as many sequences as a few people have.
constexpr int kIdleWindows = 4, kLeastIdleWindows = 4 * 8, kCountedSequences = 16;
constexpr double kBatchShare = 0.25;  // share of memory beside the weights, for a batch that nobody gave

std::string list(const std::vector<MemoryPart>& parts) {
  std::string text;
  for (const MemoryPart& p : parts) {
    if (p.bytes >= 5e6) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", p.name, p.bytes / 1e9);
  }
  return text;
}

constexpr const char *kDrafterPart = "drafter", *kDrafterCachePart = "drafter's KV cache";

double draft_cache_bytes(const DraftMemory& draft, const KvLayout& layout) {
  return draft.token_bytes * layout.page_tokens * layout.full_pages;
}

}  // namespace

std::vector<MemoryPart> parts_of(const KvDemand& demand, const ModelConfig& config,
                                 const ModelWeights& weights, const KvLayout& layout, Backend& backend) {
  std::vector<MemoryPart> parts = backend.memory(config, weights, layout);
  if (demand.draft.weights > 0) parts.push_back({kDrafterPart, demand.draft.weights});
  if (demand.draft.token_bytes > 0)
    parts.push_back({kDrafterCachePart, draft_cache_bytes(demand.draft, layout), MemoryKind::kCache});
  return parts;
}

namespace {

// The largest number up to `most` that fits; 0 if none does. What fits, fits with less.
int64_t largest(int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t low = 0;
  while (low < most) {
    const int64_t middle = (low + most + 1) / 2;
    fits(middle) ? low = middle : most = middle - 1;
  }
  return low;
}

// Sequences share the cache: what does not fit is the cache, not the context.
bool shares(const KvDemand& d) { return d.kv_tokens > d.context; }

std::string describe(const KvDemand& d) {
  if (shares(d)) return fmt::format("a KV cache of {} tokens", d.kv_tokens);
  return fmt::format("{}{} tokens", d.sequences > 1 ? fmt::format("{} sequences of ", d.sequences) : "",
                     d.context);
}

// The longest context or, where it is shared, the largest cache that fits, in whole pages; 0 if none does.
int64_t longest(KvDemand demand, const ModelConfig& config, const ModelWeights& weights, Backend& backend) {
  const bool shared = shares(demand);
  return kPageTokens *
         largest((shared ? demand.kv_tokens : demand.context) / kPageTokens, [&](int64_t pages) {
           const int64_t tokens = pages * kPageTokens;
           if (demand.kv_tokens > 0) demand.kv_tokens = tokens;
           if (!shared) demand.context = static_cast<int>(tokens);
           const Result<KvLayout> layout = kv_layout(config, demand);
           return layout.ok() && bytes_of(parts_of(demand, config, weights, layout.value(), backend)) <=
                                     backend.available_memory();
         });
}

// Bytes that --dense mxfp8 would save.
double saved_by_mxfp8(const std::vector<MemoryPart>& parts, const ModelWeights& weights) {
  const double bytes_each = bits_per_element(Format::kMxfp8) / 8;
  double wanted =
      static_cast<double>(weights.head.rows) * static_cast<double>(weights.head.cols) * bytes_each;
  for (const LayerWeights& w : weights.layers) {
    for (const MatrixView* m : {&w.q, &w.k, &w.v, &w.o})
      wanted += static_cast<double>(m->rows) * static_cast<double>(m->cols) * bytes_each;
  }
  double taken = 0;
  for (const MemoryPart& p : parts) taken += p.name == kProjectionsPart || p.name == kHeadPart ? p.bytes : 0;
  return taken - wanted;
}

std::string advice(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                   const std::vector<MemoryPart>& parts, Backend& backend) {
  const int64_t tokens = longest(demand, config, weights, backend);
  const double saved = saved_by_mxfp8(parts, weights);
  const bool dense = saved > 0 && bytes_of(parts) - saved <= backend.available_memory();
  const std::string mxfp8 = fmt::format("--dense mxfp8, which saves {:.2f} GB", saved / 1e9);
  if (tokens > 0)
    return fmt::format("use at most {} tokens of {}{}", tokens, shares(demand) ? "KV cache" : "context",
                       dense ? " or " + mxfp8 : "");
  if (dense) return "use " + mxfp8;
  return demand.sequences > 1 ? "use fewer sequences" : "use a smaller model or a device with more memory";
}

}  // namespace

Result<KvLayout> kv_layout(const ModelConfig& config, const KvDemand& d) {
  const auto pages = [](int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; };
  const int64_t full = d.kv_tokens > 0 ? pages(d.kv_tokens) : d.sequences * pages(d.context);
  // A sequence holds the window behind its first row, off page boundaries at both ends, and its rows.
  const int64_t held = d.sequences * (pages(config.window) + 2) + pages(d.max_rows);
  const int64_t idle =
      std::max<int64_t>(full / kIdleWindows, std::min(d.sequences, kCountedSequences) * kLeastIdleWindows);
  const int64_t window = std::min(full, held + (d.prefix_cache ? idle : 0));
  if (d.sequences < 1 || d.context < 1 || full > std::numeric_limits<int32_t>::max())
    return invalid("{}: expected at least 1 sequence of 1 token, and fewer than 2^31 pages", describe(d));
  return KvLayout{.page_tokens = kPageTokens,
                  .full_pages = static_cast<int>(full),
                  .window_pages = static_cast<int>(window),
                  .logit_rows = d.logit_rows};
}

namespace {

// Returns the bytes beside weights that are not loaded yet and the logits of the largest step.
double rest_beside(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                   Backend& backend) {
  return backend.available_memory() - demand.draft.weights -
         bytes_of(backend.memory(config, weights, {.logit_rows = demand.logit_rows}));
}

double cache_bytes(const KvDemand& demand, const KvLayout& layout, const ModelConfig& config,
                   const Backend& backend) {
  return kv_bytes(layout, config, backend) + draft_cache_bytes(demand.draft, layout);
}

}  // namespace

ContextChoice fitting_context(double free, const KvDemand& demand, const ModelConfig& config,
                              const Backend& backend) {
  const bool cached = demand.kv_tokens > 0 && demand.kv_tokens < config.max_context;
  const int most = cached ? static_cast<int>(demand.kv_tokens) : config.max_context;
  const auto fits = [&](int64_t tokens) {
    KvDemand d = demand;
    d.context = static_cast<int>(tokens);
    d.kv_tokens = std::max(demand.kv_tokens, tokens);
    const Result<KvLayout> layout = kv_layout(config, d);
    return layout.ok() && cache_bytes(d, layout.value(), config, backend) <= kContextShare * free;
  };
  if (fits(most)) return {most, cached ? ContextLimit::kCache : ContextLimit::kModel};
  const int64_t pages = largest(most / kPageTokens, [&](int64_t n) { return fits(n * kPageTokens); });
  return {static_cast<int>(std::min<int64_t>(most, std::max<int64_t>(pages, 1) * kPageTokens)),
          ContextLimit::kMemory};
}

int64_t fitting_kv_tokens(double free, const KvDemand& demand, const ModelConfig& config,
                          const Backend& backend) {
  const double share = backend.caps().cache_share;
  const int64_t more = largest(int64_t{demand.context} * (demand.sequences - 1), [&](int64_t tokens) {
    KvDemand d = demand;
    d.kv_tokens = demand.context + tokens;
    const Result<KvLayout> layout = kv_layout(config, d);
    return layout.ok() && cache_bytes(d, layout.value(), config, backend) <= share * free;
  });
  return demand.context + more;
}

ContextChoice fitting_context(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                              Backend& backend) {
  return fitting_context(rest_beside(demand, config, weights, backend), demand, config, backend);
}

int fitting_batch(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                  Backend& backend) {
  const BackendCaps caps = backend.caps();
  const double none = bytes_of(backend.memory(config, weights, {})),
               room = kBatchShare * (backend.available_memory() - none);
  const auto fits = [&](int64_t sequences) {
    KvDemand d = demand;
    d.sequences = d.logit_rows = static_cast<int>(sequences);
    d.context = config.window + 2 * kPageTokens, d.kv_tokens = 0, d.prefix_cache = false;
    const Result<KvLayout> layout = kv_layout(config, d);
    return layout.ok() && bytes_of(backend.memory(config, weights, layout.value())) - none <= room;
  };
  return static_cast<int>(std::max<int64_t>(1, largest(std::min(caps.batch, demand.max_rows), fits)));
}

int64_t fitting_kv_tokens(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                          Backend& backend) {
  return fitting_kv_tokens(rest_beside(demand, config, weights, backend), demand, config, backend);
}

double free_for_cache(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                      Backend& backend) {
  const auto bytes = [&](const KvLayout& layout) {
    return bytes_of(backend.memory(config, weights, layout));
  };
  return backend.available_memory() - (bytes({.logit_rows = demand.logit_rows}) - bytes({}));
}

Status plan_memory(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                   Backend& backend) {
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(config, demand));
  const std::vector<MemoryPart> parts = parts_of(demand, config, weights, layout, backend);
  const double needed = bytes_of(parts), free = backend.available_memory();
  if (needed <= free) return {};
  return error(StatusCode::kOutOfMemory, "{} with {} takes {:.2f} GB ({}), {} has {:.2f} GB free; {}",
               config.name, describe(demand), needed / 1e9, list(parts), backend.caps().name, free / 1e9,
               advice(demand, config, weights, parts, backend));
}

Status check_kv_memory(const KvLayout& layout, const ModelConfig& config, const Backend& backend,
                       const DraftMemory& draft) {
  const double needed = kv_bytes(layout, config, backend) + draft_cache_bytes(draft, layout),
               free = backend.available_memory();
  if (needed <= free) return {};
  return error(StatusCode::kOutOfMemory,
               "the KV cache takes {:.1f} GB, {:.1f} GB of memory are free; use a smaller context or fewer "
               "sequences",
               needed / 1e9, free / 1e9);
}

}  // namespace moesaic
