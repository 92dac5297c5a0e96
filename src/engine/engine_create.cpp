// An engine's options, what they ask of the KV cache, and how it begins.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "drafting/make_drafter.h"
#include "engine/engine.h"
#include "engine/kv_layout.h"

namespace moesaic {
namespace {

Status validate(const EngineOptions& o, const ModelConfig& config) {
  if (o.context < 1 || o.context > config.max_context)
    return invalid("a context of {} tokens: the model takes 1 to {}", o.context, config.max_context);
  RETURN_IF_ERROR(validate_draft_tokens(o.draft_tokens));
  if (o.max_batch < 1) return invalid("{} sequences at a time: expected at least 1", o.max_batch);
  if (o.max_rows < o.max_batch)
    return invalid("steps of {} rows are too short for {} sequences at a time", o.max_rows, o.max_batch);
  if (o.mixed_rows > 0 && o.mixed_rows < o.max_batch)
    return invalid("steps of {} rows while requests decode are too short for {} sequences at a time",
                   o.mixed_rows, o.max_batch);
  if (o.kv_tokens != 0 && o.kv_tokens < o.context)
    return invalid(
        "a KV cache of {} tokens is too small for a context of {}: enlarge it or shorten the context",
        o.kv_tokens, o.context);
  return {};
}

// The keys whose attention takes a row as long as all its products, if an operation of attention takes twice
// as long as one of a product. 15,000 of the 20b.
double keys_as_row(const ModelConfig& c) {
  constexpr double kAttention = 2, kFewest = 4096;  // a small model's step is not its operations
  const double projections = static_cast<double>(c.hidden) * (2 * c.q_size() + 2 * c.kv_size()),
               experts = 3.0 * c.experts_per_token * c.hidden * c.intermediate;
  const auto whole = static_cast<double>(c.layers - std::ranges::count(c.sliding, true));
  return std::max(kFewest, c.layers * (projections + experts) / (kAttention * 2 * c.q_size() * whole));
}

}  // namespace

KvDemand kv_demand(const EngineOptions& o) {
  return {.sequences = o.max_batch,
          .context = o.context,
          .max_rows = o.max_rows,
          .kv_tokens = o.kv_tokens,
          .prefix_cache = o.prefix_cache,
          .logit_rows = std::min(o.max_rows, o.max_batch + o.draft_rows + Scheduler::kHostRows),
          .draft = o.draft};
}

Result<KvDemand> Engine::demand(const ModelConfig& config, const EngineOptions& options) {
  EngineOptions o = options;
  if (o.context == 0) o.context = config.max_context;
  RETURN_IF_ERROR(validate(o, config));
  return kv_demand(o);
}

Result<Engine> Engine::create(Backend& backend, const ModelConfig& config, const EngineOptions& options,
                              std::unique_ptr<Drafter> drafter) {
  ASSIGN_OR_RETURN(const KvDemand demand, Engine::demand(config, options));
  EngineOptions o = options;
  o.context = demand.context;
  Engine engine(backend, config, o);
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(config, demand));
  RETURN_IF_ERROR(check_kv_memory(layout, config, backend, demand.draft));
  RETURN_IF_ERROR(backend.alloc_kv(layout));
  engine.layout_ = layout;
  engine.scheduler_ = std::make_unique<Scheduler>(
      layout, config.window,
      Scheduler::Options{.max_rows = o.max_rows,
                         .mixed_rows = o.mixed_rows > 0 ? o.mixed_rows : o.max_rows,
                         .keys_as_row = keys_as_row(config),
                         .max_batch = o.max_batch,
                         .draft_rows = o.draft_rows > 0 ? o.draft_rows : o.max_rows,
                         .prefix_cache = o.prefix_cache,
                         .can_edit = backend.can_edit()});
  if (drafter) engine.speculate(std::move(drafter), o.draft_tokens);
  engine.update_stats();
  return engine;
}

}  // namespace moesaic
