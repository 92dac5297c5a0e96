// Guesses at what a request will say next. The engine computes the guessed tokens together with the request's
// last one and keeps those that the model itself samples (engine/speculator.h), so a drafter changes how long
// an answer takes and never what it says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/draft_batch.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"

namespace moesaic {

// How sure a drafter is of a draft. Acceptance is averaged for each grade by itself.
inline constexpr int kDraftGrades = 3;

// A request that may get a draft, and its draft.
struct DraftTask {
  uint64_t request = 0;             // the engine's number of it
  std::span<const int32_t> tokens;  // prompt and answer so far; from call to call they only grow
  int prompt_tokens = 0;
  bool private_text = false;  // other requests' texts are not to be used for it
  int most = 0;               // tokens that the draft may have, at most kMostDraft
  // How the model will sample the draft's tokens: [most]. A drafter that has a distribution samples token i
  // by sampling[i], with the same `uniform` and in the same order: it then agrees with the model as often as
  // their distributions allow. Penalties, biases and grammars are left out. For costly drafters only.
  std::vector<DeviceSampling> sampling = {};
  // The request's pages of the full-attention layers, which reach tokens.size() + most - 1 positions. For
  // costly drafters only.
  std::span<const int32_t> full_pages = {};

  std::vector<int32_t> draft = {};  // set by the drafter, at most `most`; empty: it has no guess
  int grade = 0;                    // set by the drafter, below kDraftGrades
};

// Rows of a step that hold: the tokens of a request that are computed from here on, drafted ones as far as
// they were accepted.
struct ComputedRows {
  uint64_t request = 0;
  int sequence = 0;  // its index in the step's batch
  // The request's tokens, as of now, and the step's pages of the full-attention layers: valid during the
  // call.
  std::span<const int32_t> tokens = {}, full_pages = {};
  int first_row = 0;       // in the step's batch
  int first_position = 0;  // in the request
  int rows = 0;
};

// A sequence of a step that was launched and whose tokens are not known yet, and what is drafted behind it.
struct DraftAhead {
  SequenceAhead sequence;  // as DraftHead::begin_draft() takes it, but for `begin`
  int first_position = 0;  // of its first row, at least
  int rows = 0;            // that hold whatever is sampled
};

// Of one engine, on its thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;
  // Whether a draft costs time that counts beside a step. One that does not is asked at every step, even
  // where its draft is only compared with what the model says.
  virtual bool is_costly() const { return false; }
  // Whether it reads the model's own activations of each step: then every step's rows are known before the
  // next one is launched, and draft() is called between the two, if need be without tasks; or skip(), and
  // then the next step may be launched before the rows are known.
  virtual bool follows_steps() const { return false; }
  // Whether it can draft behind a step before its tokens are known: begin_draft() and finish_draft(), as a
  // DraftHead has them, in place of draft(). computed() is then told of the step between the two.
  virtual bool drafts_ahead() const { return false; }
  virtual Result<int> begin_draft(std::span<DraftAhead>) {
    return Status(StatusCode::kUnsupported, name() + " drafts behind a step that is done");
  }
  virtual Result<double> finish_draft(int, std::span<int32_t>) {
    return Status(StatusCode::kUnsupported, name() + " drafts behind a step that is done");
  }
  // An error is that of the drafter: the requests go on without drafts.
  virtual Status draft(std::span<DraftTask> tasks) = 0;
  // In place of draft(), while drafts do not pay: the last step's rows are not wanted.
  virtual void skip() {}
  // After each step, once it is known which rows hold, by ascending sequence. begun: a draft was begun behind
  // it.
  virtual void computed(std::span<const ComputedRows>, [[maybe_unused]] bool begun) {}
  // These pages of the full-attention layers now hold what was loaded from elsewhere.
  virtual void loaded(std::span<const int32_t>) {}
  // The request has ended, with these tokens. Also told of requests that never asked for a draft. Where the
  // text is private all of it counts as prompt.
  virtual void end(uint64_t request, std::span<const int32_t> tokens, int prompt_tokens) = 0;
};

}  // namespace moesaic
