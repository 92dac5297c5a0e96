// A draft head (core/eagle3.h) beside the target on the same device: an optional interface beside Backend,
// which Backend::draft_head() gives.
//
// Position i of the head takes the embedding of the sequence's token i + 1 and the target's hidden states at
// position i; its logits are of token i + 2. Its K and V are one more full-attention layer of the paged
// cache, reached through Sequence::full_pages: sharing, taking back and computing again work as for the
// target. Where sequences share a page, the entry of its last position was made with the first one's next
// token; for another sequence that is an approximation, which lowers acceptance and changes no answer.
//
// Order of calls: Backend::load, load(), Backend::alloc_kv; then draft() after a step. While a head is
// loaded, each step keeps the hidden states of all its rows until the next one begins.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/draft_batch.h"
#include "core/eagle3.h"

namespace moesaic {

inline constexpr const char *kDraftHeadPart = "draft head", *kDraftCachePart = "draft head's KV cache";

// The format that a device makes of a head's matrix, as made_of() takes it. Drafts need not be exact, and
// what they take is the time that reading the head takes: where `dense` keeps formats, 16 bits become Q8_0.
inline std::optional<Format> draft_format(const MatrixView& m, std::optional<Format> dense) {
  const bool wide = m.format == Format::kBF16 || m.format == Format::kF16;
  return !dense && wide && m.cols % 32 == 0 ? Format::kQ8_0 : dense;
}

// Sees the logits [draft_vocab] of every draft, by its sequence's place in draft()'s list: for tests.
using DraftTrace = std::function<void(size_t sequence, std::span<const float> logits)>;

class DraftHead {
 public:
  virtual ~DraftHead() = default;

  // Repacks the head; afterwards the views are not read again, but for what Backend::load says. Fails with
  // one line if the head does not fit the loaded model, is damaged, or the KV cache is allocated already.
  virtual Status load(const Eagle3Config& config, const Eagle3Weights& weights) = 0;
  virtual bool loaded() const = 0;
  // Takes steps' hidden states at other boundaries from the next step on: to measure which convention a head
  // means. As many as the head's taps.
  virtual Status set_taps(const std::vector<int>& boundaries) = 0;
  virtual void trace(DraftTrace trace) = 0;
  // The memory that a head and its cache will take, known before it is loaded. Backend::memory counts a
  // loaded head.
  virtual std::vector<MemoryPart> memory(const Eagle3Config& config, const Eagle3Weights& weights,
                                         const KvLayout& layout) const = 0;
  // Bytes that one token's K and V take in the head's cache.
  virtual double kv_token_bytes(const Eagle3Config& config) const = 0;

  // Takes in rows of the last step and drafts, all sequences together. tokens: one after the other the drafts
  // of each sequence, as target ids, sum of `drafts`; from a logit that is not finite on -1. Once after a
  // step at most; sequences ascending, each once. Rows that are never taken in leave the head's cache as it
  // was: drafts get worse, nothing else.
  virtual Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) = 0;

  // draft() in two parts, on a device that samples: nobody waits for the host between a step and its draft,
  // nor between the draft and the step that verifies it (Continuation of core/batch.h). begin_draft(): after
  // end_step() and before sampled(); the device finds out which rows hold. finish_draft(): after sampled(),
  // of what begin_draft() returned; it waits, and gives the seconds that the draft took. Two drafts may be
  // begun at a time; what is never finished is lost.
  virtual bool drafts_ahead() const { return false; }
  virtual Result<int64_t> begin_draft(std::span<const SequenceAhead> sequences);
  virtual Result<double> finish_draft(int64_t begun, std::span<int32_t> tokens);
};

inline Result<int64_t> DraftHead::begin_draft(std::span<const SequenceAhead>) {
  return Status(StatusCode::kUnsupported, "this device drafts behind a step that is done");
}
inline Result<double> DraftHead::finish_draft(int64_t, std::span<int32_t>) {
  return Status(StatusCode::kUnsupported, "this device drafts behind a step that is done");
}

}  // namespace moesaic
