// A drafter guesses what a request will say next. The engine computes the guessed tokens together with the
// request's last one and keeps those that the model itself samples (engine/speculator.h), so a drafter
// changes how long an answer takes and never what it says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/draft_batch.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"

namespace moesaic {

// The grades say how sure a drafter is of a draft. Acceptance is averaged for each grade by itself.
inline constexpr int kDraftGrades = 3;

// A request that may get a draft, and its draft.
struct DraftTask {
  uint64_t request = 0;             // the engine's number of the request
  std::span<const int32_t> tokens;  // prompt and answer so far; from call to call they only grow
  int prompt_tokens = 0;
  std::string_view salt = {};  // texts of requests with another one must not be used
  int most = 0;                // most tokens of the draft, at most kMostDraft
  // The model will sample the draft's tokens in this way: [most]. A drafter that has a distribution samples
  // token i by sampling[i], with the same `uniform` and in the same order: it then agrees with the model as
  // often as their distributions allow. Penalties, biases and grammars are left out. For costly drafters
  // only.
  std::vector<DeviceSampling> sampling = {};
  // The request's pages of the full-attention layers, which reach tokens.size() + most - 1 positions. For
  // costly drafters only.
  std::span<const int32_t> full_pages = {};

  std::vector<int32_t> draft = {};  // set by the drafter, at most `most`; empty: it has no guess
  int grade = 0;                    // set by the drafter, below kDraftGrades
};

// The rows of a request in a step that hold: drafted ones as far as they were accepted.
struct ComputedRows {
  uint64_t request = 0;
  int sequence = 0;  // its index in the step's batch
  // The request's tokens, as they are now, and the step's pages of the full-attention layers: both are valid
  // during the call.
  std::span<const int32_t> tokens = {}, full_pages = {};
  int first_row = 0;       // in the step's batch
  int first_position = 0;  // in the request
  int rows = 0;
};

// A drafter belongs to one engine and is called on its thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;
  // True if a draft costs time that counts beside a step. A drafter that costs nothing is asked at every
  // step, even if its draft is only compared with what the model says.
  virtual bool is_costly() const { return false; }
  // True if it reads the model's own activations of each step. Then every step's rows are known before the
  // next one is launched, and draft() is called between the two, if need be without tasks. Or skip() is
  // called, and then the next step may be launched before the rows are known.
  virtual bool follows_steps() const { return false; }
  // True if it can draft behind a step before its tokens are known. Then begin_draft() and finish_draft(), as
  // a DraftHead has them, are called in place of draft(), and computed() of the step between the two. The
  // drafter sets `begin` of the sequences.
  virtual bool drafts_ahead() const { return false; }
  virtual Result<int64_t> begin_draft(std::span<SequenceAhead>, [[maybe_unused]] const Batch& step) {
    return Status(StatusCode::kUnsupported, name() + " drafts behind a step that is done");
  }
  virtual Result<double> finish_draft(int64_t, std::span<int32_t>) {
    return Status(StatusCode::kUnsupported, name() + " drafts behind a step that is done");
  }
  // After an error the requests go on without drafts.
  virtual Status draft(std::span<DraftTask> tasks) = 0;
  // Called in place of draft() while drafts do not pay: the last step's rows are not wanted.
  virtual void skip() {}
  // Called after each step, once it is known which rows hold, with ascending sequences. begun: a draft was
  // begun behind it.
  virtual void computed(std::span<const ComputedRows>, [[maybe_unused]] bool begun) {}
  // These pages of the full-attention layers now hold what was loaded from elsewhere.
  virtual void loaded(std::span<const int32_t>) {}
  // The request has lost its pages and may go on later: what the drafter has of it may go to others.
  virtual void yielded(uint64_t) {}
  // The request has ended, with these tokens. It is called for requests that never asked for a draft, too.
  // All of a private text counts as prompt.
  virtual void end(uint64_t request, std::span<const int32_t> tokens, int prompt_tokens) = 0;
};

}  // namespace moesaic
