#include "drafting/model_drafter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "core/choose_token.h"
#include "model/forward.h"

namespace moesaic {
namespace {

int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// A request needs pages of the sliding layers for the window behind a step's first row, the step, and a draft
// that is taken back, off page boundaries.
int ring_pages(const ModelConfig& config, const ModelDrafter::Options& o) {
  return static_cast<int>(pages_of(config.window + o.max_rows + kMostDraft)) + 1;
}

}  // namespace

KvLayout ModelDrafter::layout(const ModelConfig& config, const Options& o) {
  return {.page_tokens = kPageTokens,
          .full_pages = static_cast<int>(pages_of(o.kv_tokens)),
          .window_pages = o.sequences * ring_pages(config, o)};
}

ModelDrafter::ModelDrafter(std::unique_ptr<Backend> backend, const ModelConfig& config,
                           const Options& options)
    : backend_(std::move(backend)), config_(config), options_(options), layout_(layout(config, options)) {
  free_full_.resize(static_cast<size_t>(layout_.full_pages));
  std::iota(free_full_.begin(), free_full_.end(), 0);
  for (int first = 0; first < layout_.window_pages; first += ring_pages(config, options)) {
    std::vector<int32_t>& ring = free_rings_.emplace_back(ring_pages(config, options));
    std::iota(ring.begin(), ring.end(), first);
  }
}

Result<std::unique_ptr<Drafter>> ModelDrafter::create(std::unique_ptr<Backend> backend,
                                                      const ModelConfig& config, const Options& options) {
  std::unique_ptr<ModelDrafter> drafter(new ModelDrafter(std::move(backend), config, options));
  RETURN_IF_ERROR(drafter->backend_->alloc_kv(drafter->layout_));
  return std::unique_ptr<Drafter>(std::move(drafter));
}

// A text can be used as far as the same tokens stand there, if the window's pages before the first other one
// were not used again.
size_t ModelDrafter::reusable(const Text& text, const DraftTask& task) const {
  if (text.salt != task.salt) return 0;
  const auto differ = std::ranges::mismatch(text.tokens, task.tokens.first(task.tokens.size() - 1));
  const auto same = static_cast<size_t>(differ.in1 - text.tokens.begin());
  if (same == 0) return 0;
  const size_t window = static_cast<size_t>(config_.window),
               first = same > window ? (same - window) / kPageTokens : 0,
               last = (text.reached - 1) / kPageTokens;
  return first + text.ring.size() > last ? same : 0;
}

ModelDrafter::Text ModelDrafter::reuse(const DraftTask& task) {
  size_t most = kPageTokens - 1;  // less is not worth another text's end
  auto best = ended_.end();
  for (auto at = ended_.begin(); at != ended_.end(); ++at) {
    const size_t same = reusable(*at, task);
    if (same > most) most = same, best = at;
  }
  if (best == ended_.end()) return {};
  Text text = std::move(*best);
  ended_.erase(best);
  text.tokens.resize(most);
  text.sure = most;
  return text;
}

// The places of the oldest text are free again.
bool ModelDrafter::forget_oldest() {
  if (ended_.empty()) return false;
  Text& text = ended_.front();
  free_full_.insert(free_full_.end(), text.full_pages.begin(), text.full_pages.end());
  free_rings_.push_back(std::move(text.ring));
  ended_.erase(ended_.begin());
  return true;
}

// Returns null if too many requests have a text already.
ModelDrafter::Text* ModelDrafter::text_of(const DraftTask& task) {
  const auto at = texts_.find(task.request);
  if (at != texts_.end()) return &at->second;
  Text text = reuse(task);
  if (text.ring.empty()) {
    text.salt = task.salt;
    if (free_rings_.empty() && !forget_oldest()) return nullptr;
    text.ring = std::move(free_rings_.back());
    free_rings_.pop_back();
  }
  return &(texts_[task.request] = std::move(text));
}

bool ModelDrafter::reserve(Text& text, size_t tokens) {
  const auto wanted = static_cast<size_t>(pages_of(static_cast<int64_t>(tokens)));
  while (wanted > text.full_pages.size() + free_full_.size()) {
    if (!forget_oldest()) return false;
  }
  while (text.full_pages.size() < wanted) {
    text.full_pages.push_back(free_full_.back());
    free_full_.pop_back();
  }
  return true;
}

void ModelDrafter::append(Text& text, std::span<const int32_t> tokens, bool wants_logits,
                          Batch& batch) const {
  const auto rows = static_cast<int>(tokens.size()), first = static_cast<int>(text.tokens.size());
  Sequence s{.first_row = batch.rows(),
             .rows = rows,
             .context = first + rows,
             .full_pages = text.full_pages,
             .window_pages = {}};
  const int reach = std::max(0, first - config_.window + 1) / kPageTokens;
  for (int page = 0; page < pages_of(s.context); ++page)
    s.window_pages.push_back(page < reach ? -1 : text.ring[static_cast<size_t>(page) % text.ring.size()]);
  for (int i = 0; i < rows; ++i) batch.positions.push_back(first + i);
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
  text.reached = std::max(text.reached, text.tokens.size());
  if (wants_logits) batch.logit_rows.push_back(batch.rows() - 1);
  batch.sequences.push_back(std::move(s));
}

// Adds rows of what the requests have said since, always the last token's, as a draft goes on from it. Wanted
// are the last rows of requests whose end the step reaches.
std::vector<ModelDrafter::Wanted> ModelDrafter::catch_up(std::span<DraftTask> tasks, Batch& batch) {
  std::vector<Wanted> wanted;
  for (DraftTask& task : tasks) {
    const size_t length = task.tokens.size();
    const auto most = static_cast<size_t>(task.most);
    if (task.most == 0 || batch.rows() == options_.max_rows ||
        length + most > static_cast<size_t>(config_.max_context))
      continue;
    Text* const text = text_of(task);
    if (text == nullptr || !reserve(*text, length + most)) continue;
    size_t common = text->sure;
    while (common < std::min(text->tokens.size(), length - 1) && text->tokens[common] == task.tokens[common])
      ++common;
    text->tokens.resize(common);
    const auto rows = std::min(length - common, static_cast<size_t>(options_.max_rows - batch.rows()));
    const bool reaches = common + rows == length;
    append(*text, task.tokens.subspan(common, rows), reaches, batch);
    text->sure = std::min(common + rows, length - 1);
    if (reaches) wanted.push_back({&task, text});
  }
  return wanted;
}

// Returns the token of each wanted row; -1: a logit is not finite.
Result<std::vector<int32_t>> ModelDrafter::run(Batch& batch, std::span<const Wanted> wanted) {
  std::vector<DeviceSampling> sampling;
  for (const Wanted& w : wanted) sampling.push_back(w.task->sampling[w.task->draft.size()]);
  std::vector<int32_t> tokens;
  if (backend_->can_sample() && !wanted.empty()) {
    batch.sampling = sampling;
    RETURN_IF_ERROR(forward(*backend_, config_, batch, {}));
    std::vector<SampledToken> sampled(wanted.size());
    RETURN_IF_ERROR(backend_->sampled(sampled, {}));
    for (const SampledToken& s : sampled) tokens.push_back(s.token);
    return tokens;
  }
  const auto vocab = static_cast<size_t>(config_.vocab);
  logits_.resize(wanted.size() * vocab);
  RETURN_IF_ERROR(forward(*backend_, config_, batch, logits_));
  for (size_t i = 0; i < wanted.size(); ++i)
    tokens.push_back(choose_token(std::span(logits_).subspan(i * vocab, vocab), {}, sampling[i]));
  return tokens;
}

// Returns those that want another token.
std::vector<ModelDrafter::Wanted> ModelDrafter::take(std::span<const Wanted> wanted,
                                                     std::span<const int32_t> tokens) {
  std::vector<Wanted> more;
  for (size_t i = 0; i < wanted.size(); ++i) {
    DraftTask& task = *wanted[i].task;
    if (tokens[i] < 0) continue;
    task.draft.push_back(tokens[i]);
    if (std::ssize(task.draft) < task.most) more.push_back(wanted[i]);
  }
  return more;
}

// A step has failed: nothing is known of what the cache has of these requests.
void ModelDrafter::forget(std::span<const DraftTask> tasks) {
  for (const DraftTask& task : tasks) {
    const auto at = texts_.find(task.request);
    if (at != texts_.end()) at->second.tokens.clear(), at->second.sure = 0;
  }
}

Status ModelDrafter::draft(std::span<DraftTask> tasks) {
  Batch batch;
  std::vector<Wanted> wanted = catch_up(tasks, batch);
  while (batch.rows() > 0) {
    const Result<std::vector<int32_t>> tokens = run(batch, wanted);
    if (!tokens.ok()) {
      forget(tasks);
      return tokens.status();
    }
    wanted = take(wanted, tokens.value());
    batch = {};
    for (const Wanted& w : wanted) append(*w.text, std::span(w.task->draft).last(1), true, batch);
  }
  return {};
}

void ModelDrafter::end(uint64_t request, std::span<const int32_t>, int) {
  const auto at = texts_.find(request);
  if (at == texts_.end()) return;
  ended_.push_back(std::move(at->second));
  texts_.erase(at);
}

}  // namespace moesaic
