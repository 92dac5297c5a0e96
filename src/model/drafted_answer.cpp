#include "model/drafted_answer.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "core/accepted_prefix.h"
#include "model/sequence_runner.h"

namespace moesaic {
namespace {

class Generation {
 public:
  Generation(SequenceRunner& runner, DraftHead* head, const ModelConfig& config,
             const DraftedOptions& options, int most)
      : runner_(runner), head_(head), vocab_(static_cast<size_t>(config.vocab)), options_(options) {
    pages_.resize(static_cast<size_t>((most + kPageTokens - 1) / kPageTokens));
    std::iota(pages_.begin(), pages_.end(), 0);  // as SequenceRunner has them
  }

  Result<DraftedAnswer> run(std::span<const int32_t> prompt) {
    RETURN_IF_ERROR(take_prompt(prompt));
    while (!ended_) RETURN_IF_ERROR(step());
    return std::move(answer_);
  }

 private:
  // Takes in the rows of the last step that next_tokens follow, and drafts.
  Status draft(std::vector<int32_t> next_tokens, int wanted) {
    drafts_.assign(static_cast<size_t>(wanted), 0);
    if (head_ == nullptr) return {};
    const DraftSequence sequence = {
        .next_tokens = std::move(next_tokens), .drafts = wanted, .full_pages = pages_};
    RETURN_IF_ERROR(head_->draft(std::span(&sequence, 1), drafts_));
    drafts_.resize(static_cast<size_t>(std::ranges::find(drafts_, -1) - drafts_.begin()));
    return {};
  }

  int wanted() const {
    return head_ == nullptr ? 0 : std::min(options_.drafts, options_.max_tokens - count() - 1);
  }
  int count() const { return static_cast<int>(std::ssize(answer_.tokens)); }

  void take(int32_t token) {
    if (ended_) return;
    answer_.tokens.push_back(token);
    ended_ = count() == options_.max_tokens ||
             std::ranges::find(options_.stop_tokens, token) != options_.stop_tokens.end();
  }

  Status take_prompt(std::span<const int32_t> prompt) {
    const auto chunk = static_cast<size_t>(options_.chunk);
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto part = prompt.subspan(at, std::min(chunk, prompt.size() - at));
      RETURN_IF_ERROR(runner_.append(part, SequenceRunner::Wanted::kLast, logits_));
      const bool last = at + part.size() == prompt.size();
      std::vector<int32_t> next(part.begin() + 1, part.end());
      next.push_back(last ? argmax(logits_) : prompt[at + part.size()]);
      if (last) take(next.back());
      RETURN_IF_ERROR(draft(std::move(next), last && !ended_ ? wanted() : 0));
    }
    return {};
  }

  // Verifies the drafts after the last token: the ones that the target itself would have said are kept, and
  // what it says after them.
  Status step() {
    std::vector<int32_t> rows = {answer_.tokens.back()};
    rows.insert(rows.end(), drafts_.begin(), drafts_.end());
    const int before = runner_.length();
    RETURN_IF_ERROR(runner_.append(rows, SequenceRunner::Wanted::kAll, logits_));
    std::vector<int32_t> said;
    for (size_t row = 0; row < rows.size(); ++row)
      said.push_back(argmax(std::span(logits_).subspan(row * vocab_, vocab_)));
    said.resize(1 + static_cast<size_t>(accepted_prefix(drafts_, said)));
    runner_.truncate(before + static_cast<int>(std::ssize(said)));
    ++answer_.steps;
    answer_.generated += static_cast<int>(std::ssize(said));
    for (const int32_t token : said) take(token);
    return ended_ ? Status() : draft(std::move(said), wanted());
  }

  SequenceRunner& runner_;
  DraftHead* head_;
  size_t vocab_;
  const DraftedOptions& options_;
  std::vector<int32_t> pages_, drafts_;
  std::vector<float> logits_;
  DraftedAnswer answer_;
  bool ended_ = false;
};

}  // namespace

Result<DraftedAnswer> answer_with_drafts(Backend& backend, const ModelConfig& config,
                                         std::span<const int32_t> prompt, const DraftedOptions& options) {
  if (prompt.empty() || options.max_tokens < 1)
    return invalid("drafts: nothing to answer, or no tokens wanted");
  if (options.drafts < 0 || options.drafts > kMostDraft || options.chunk <= options.drafts)
    return invalid("drafts: {} in a step of {} rows, at most {} are possible", options.drafts, options.chunk,
                   kMostDraft);
  DraftHead* const head = options.drafts > 0 ? backend.draft_head() : nullptr;
  if (options.drafts > 0 && (head == nullptr || !head->loaded()))
    return invalid("drafts: {} has no draft head loaded", backend.caps().name);
  // The drafts of a step that is cut short stand beyond the last token.
  const int most = static_cast<int>(std::ssize(prompt)) + options.max_tokens + options.drafts;
  ASSIGN_OR_RETURN(
      SequenceRunner runner,
      SequenceRunner::create(backend, config,
                             {.max_tokens = most, .chunk = options.chunk, .page_tokens = kPageTokens}));
  return Generation(runner, head, config, options, most).run(prompt);
}

Result<MeasuredTaps> measure_taps(Backend& backend, const ModelConfig& config, const Eagle3Config& head,
                                  std::span<const int32_t> prompt, const DraftedOptions& options) {
  if (backend.draft_head() == nullptr || !backend.draft_head()->loaded())
    return invalid("drafts: {} has no draft head loaded", backend.caps().name);
  const TapConvention other =
      head.convention == TapConvention::kBoundary ? TapConvention::kBlockOutput : TapConvention::kBoundary;
  MeasuredTaps best;
  for (const TapConvention convention : {head.convention, other}) {
    Eagle3Config meant = head;
    meant.convention = convention;
    const auto boundaries = tap_boundaries(meant, config);
    if (!boundaries.ok()) continue;
    RETURN_IF_ERROR(backend.draft_head()->set_taps(boundaries.value()));
    ASSIGN_OR_RETURN(const DraftedAnswer answer, answer_with_drafts(backend, config, prompt, options));
    if (best.boundaries.empty() || answer.length() > best.length) {
      best = {convention, boundaries.value(), answer.length(), best.length};
    } else {
      best.other_length = answer.length();
    }
  }
  if (best.boundaries.empty()) return invalid("{}: its taps are not layers of the model", head.name);
  RETURN_IF_ERROR(backend.draft_head()->set_taps(best.boundaries));
  return best;
}

}  // namespace moesaic
