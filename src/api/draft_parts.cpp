#include "api/draft_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/bundled_model.h"
#include "api/tokenizer_source.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/dummy.h"
#include "drafting/model_drafter.h"
#include "model/drafted_answer.h"

namespace moesaic {
namespace {

const std::string kDummyHead = "dummy";
constexpr int kMeasuredRows = 16;  // rows of a step while a head's taps are measured

Result<Eagle3Head> open_head(const std::string& path, const ModelConfig& model) {
  if (path == kDummyHead) return make_dummy_head("", model);
  if (path.starts_with(kDummyHead + ",")) return make_dummy_head(path.substr(kDummyHead.size() + 1), model);
  if (!path.empty()) return open_eagle3(path, model);
  ASSIGN_OR_RETURN(const std::string folder, bundled_head());
  auto head = open_eagle3(folder, model);
  if (head.ok()) return head;
  return invalid("'eagle3' alone is the head of the model 'tiny', for others give eagle3:FOLDER ({})",
                 head.status().message());
}

// Tokens are compared as far as both models have a tokenizer.
Status check_vocabulary(const Checkpoint& drafts, const Checkpoint& model) {
  if (drafts.config.vocab != model.config.vocab)
    return invalid("{} has a vocabulary of {} tokens, {} of {}: a draft model needs the same one",
                   drafts.config.name, drafts.config.vocab, model.config.name, model.config.vocab);
  const auto theirs = tokenizer_of(drafts), ours = tokenizer_of(model);
  if (!theirs.ok() || !ours.ok()) return {};
  for (int32_t id = 0; id < model.config.vocab; ++id) {
    if (theirs->token_bytes(id) != ours->token_bytes(id))
      return invalid("token {} of {} is another one than that of {}: a draft model needs the same vocabulary",
                     id, drafts.config.name, model.config.name);
  }
  return {};
}

bool both_conventions_fit(Eagle3Config head, const ModelConfig& model) {
  for (const TapConvention convention : {TapConvention::kBoundary, TapConvention::kBlockOutput}) {
    head.convention = convention;
    if (!tap_boundaries(head, model).ok()) return false;
  }
  return true;
}

// A wrong reading of a head's taps costs acceptance and nothing else: of a short answer it shows.
Status measure_head(Backend& backend, const Checkpoint& model, const Eagle3Config& head) {
  const auto tokenizer = tokenizer_of(model);
  if (!tokenizer.ok() || !both_conventions_fit(head, model.config)) return {};
  const std::vector<int32_t> prompt =
      tokenizer->encode("<|start|>user<|message|>Why is the sky blue?<|end|><|start|>assistant", true);
  ASSIGN_OR_RETURN(const MeasuredTaps taps,
                   measure_taps(backend, model.config, head, prompt,
                                {.max_tokens = 48, .drafts = 2, .chunk = kMeasuredRows}));
  log(LogLevel::kInfo,
      fmt::format("draft head: its taps are {}; {:.2f} tokens a step, {:.2f} by the other reading",
                  taps.convention == TapConvention::kBoundary ? "boundaries" : "outputs of blocks",
                  taps.length, taps.other_length));
  return {};
}

ModelDrafter::Options options_of(const EngineOptions& o) {
  const int64_t each = int64_t{o.context} * o.max_batch;
  return {
      .sequences = o.max_batch, .kv_tokens = o.kv_tokens > 0 ? o.kv_tokens : each, .max_rows = o.max_rows};
}

}  // namespace

Result<DraftParts> DraftParts::open(const std::string& speculative, const Checkpoint& model) {
  ASSIGN_OR_RETURN(const DrafterChoice choice, drafter_choice(speculative));
  DraftParts parts;
  parts.name_ = speculative, parts.kind_ = choice.kind;
  if (choice.kind == DrafterKind::kEagle3) {
    ASSIGN_OR_RETURN(parts.head_, open_head(choice.path, model.config));
  }
  if (choice.kind == DrafterKind::kModel) {
    ASSIGN_OR_RETURN(const std::string path, model_path(choice.path));
    ASSIGN_OR_RETURN(parts.model_, open_checkpoint(path));
    RETURN_IF_ERROR(check_vocabulary(*parts.model_, model));
  }
  return parts;
}

Result<DraftMemory> DraftParts::plan_head(Backend& backend) const {
  const DraftHead* const head = backend.draft_head();
  if (head == nullptr)
    return error(
        StatusCode::kUsage,
        "--speculative {}: {} cannot run draft heads; use --device cpu and one rank, or --speculative ngram",
        name_, backend.caps().name);
  return DraftMemory{.weights = bytes_of(head->memory(head_->config, head_->weights, {})),
                     .token_bytes = head->kv_token_bytes(head_->config)};
}

Result<DraftMemory> DraftParts::plan(Backend& backend, const BackendOptions& made_with,
                                     const EngineOptions& engine) {
  max_rows_ = engine.max_rows;
  if (head_) return plan_head(backend);
  if (!model_) return DraftMemory{};
  ASSIGN_OR_RETURN(model_backend_, create_backend(backend.device().name, made_with));
  KvLayout windows = ModelDrafter::layout(model_->config, options_of(engine));
  windows.full_pages = 0;
  const auto full = std::ranges::count(model_->config.sliding, false);
  return DraftMemory{
      .weights = bytes_of(model_backend_->memory(model_->config, model_->weights, windows)),
      .token_bytes = static_cast<double>(full) * model_backend_->kv_token_bytes(model_->config)};
}

Status DraftParts::load_head(Backend& backend, const Checkpoint& model) const {
  RETURN_IF_ERROR(backend.draft_head()->load(head_->config, head_->weights));
  return max_rows_ < kMeasuredRows ? Status() : measure_head(backend, model, head_->config);
}

Status DraftParts::load(Backend& backend, const Checkpoint& model) {
  if (head_) return load_head(backend, model);
  if (!model_) return {};
  Status loaded = model_backend_->load(model_->config, model_->weights, {});
  if (model_->weights.intact) RETURN_IF_ERROR(model_->weights.intact());
  return loaded;
}

Result<std::unique_ptr<Drafter>> DraftParts::drafter(Backend& backend, const EngineOptions& engine) {
  if (!model_) return make_drafter(kind_, backend.draft_head());
  return ModelDrafter::create(std::move(model_backend_), model_->config, options_of(engine));
}

}  // namespace moesaic
