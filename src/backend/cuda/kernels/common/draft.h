// The small kernels of a draft head (core/eagle3.h), between its products. Values that are not finite go on
// as such to the logits, of which then no token is chosen, but not into the head's K and V.
#pragma once

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/kernels/common/route.h"
#include "core/batch.h"
#include "core/eagle3.h"

namespace moesaic::cuda {

// A tap of the target's residual stream: out[r] = x[r] + deferred[r], which stays deferred.
struct Tap {
  const float* x = nullptr;  // [rows, hidden]
  DeferredResidual deferred = {};
  int rows = 0, hidden = 0;
  float* out = nullptr;
  int64_t stride = 0;  // floats from one row of `out` to the next
};
Status tap(const Tap& p, cudaStream_t stream);

// out[r] = the taps of row sources[r] as fc takes them, times factor: all of them through input_norm, then
// each through its fc_norm, where there are such norms.
struct FuseTaps {
  const float* taps = nullptr;       // [rows of the step, taps, hidden]
  const int32_t* sources = nullptr;  // [rows]
  int rows = 0, count = 0, hidden = 0;
  float eps = 0, factor = 1;
  const float* input_norm = nullptr;  // [count, hidden] or null
  const float* fc_norms = nullptr;    // [count, hidden] or null
  void* out = nullptr;                // [rows, count, hidden] BF16, or F16
  bool bf16 = true;
};
Status fuse_taps(const FuseTaps& p, cudaStream_t stream);

// out[r] = [norm(embedding of tokens[r]); norm(features[r])] times factor. residual[places[r]] = features[r],
// or norm(features[r]), where places[r] is not negative.
struct JoinInputs {
  Raw embed = {};
  const int32_t* tokens = nullptr;  // [rows]
  const float* features = nullptr;  // [rows, hidden]
  const int32_t* places = nullptr;  // [rows]
  int rows = 0, hidden = 0;
  float eps = 0, factor = 1;
  const float* embed_norm = nullptr;
  const float* hidden_norm = nullptr;
  bool normed_residual = false;
  void* out = nullptr;  // [rows, 2 hidden] BF16, or F16
  bool bf16 = true;
  float* residual = nullptr;
};
Status join_inputs(const JoinInputs& p, cudaStream_t stream);

// to[places[r]] = from[r] where places[r] is not negative; rows of 16-bit values.
struct PlaceRows {
  const void* from = nullptr;  // [rows, width]
  const int32_t* places = nullptr;
  int rows = 0, width = 0;  // width: a multiple of 8
  void* to = nullptr;
};
Status place_rows(const PlaceRows& p, cudaStream_t stream);

// The beginning of the next round: its row r goes on from row kept[r] of this one.
// tokens[r] = ids[chosen[kept[r]]], or chosen[kept[r]]; 0 for a token that could not be chosen.
struct NextRound {
  const int32_t* kept = nullptr;    // [rows]
  const int32_t* chosen = nullptr;  // chosen by this round's rows; -1: none
  const int32_t* ids = nullptr;     // null: they are the target's already
  const float* from = nullptr;      // this round's rows, [.., hidden]
  int rows = 0, hidden = 0;
  int32_t* tokens = nullptr;  // [rows]
  float* features = nullptr;  // [rows, hidden]
};
Status next_round(const NextRound& p, cudaStream_t stream);

// ---- between a step, its draft and the next step, without the host; core/continuation.h says the same ----

inline constexpr int kTileInts = sizeof(RowTile) / sizeof(int32_t);
inline constexpr int kSamplingInts = sizeof(DeviceSampling) / sizeof(int32_t);

// A sequence of a step behind which a draft was begun. Its last `wanted` rows give logits; of these all but
// the first are of drafted tokens. Offsets in int32.
struct BegunSequence {
  int32_t sequence;              // in the step
  int32_t step_row, rows;        // its rows in the step
  int32_t first_wanted, wanted;  // among the step's logit rows
  int32_t row;                   // its first row in the first round
  int32_t table, skipped;        // its pages, offset in HoldRows::pages; of these, not attended to
  int32_t sampling;              // offset in HoldRows::inputs of its list; -1: the likeliest are chosen
  int32_t drafts;                // tokens
  int32_t places[kMostDraft];    // where its rows are in each round
};

// Finds out how many drafted rows of each sequence hold: accepted[sequence], the longest beginning of its
// draft that was sampled too. Moves the rows of the draft's rounds to the positions that follow, with their
// slots, tiles and sampling, and gives the first round the tokens that were sampled.
struct HoldRows {
  // The step, as it ran.
  const int32_t* tokens = nullptr;     // [rows]
  const int32_t* positions = nullptr;  // [rows]
  const int32_t* sampled = nullptr;    // [logit rows]
  const int32_t* moved = nullptr;      // [sequences]; null: none was
  // The draft.
  int32_t* inputs = nullptr;
  int sequences = 0, count = 0;  // offset of BegunSequence [count]
  int pages = 0, tokens_in = 0, places = 0;
  struct Round {
    int positions, slots, sampling, tiles;
  } rounds[kMostDraft] = {};
  int32_t* accepted = nullptr;  // [sequences of the step]
};
Status hold_rows(const HoldRows& p, cudaStream_t stream);

// drafts[sequence] = the tokens that its rows of each round chose, as target ids; -1 where none could be. The
// same for the host.
struct KeepDrafts {
  const int32_t* inputs = nullptr;
  int sequences = 0, count = 0;  // as in HoldRows
  const int32_t* chosen = nullptr;
  int stride = 0;  // from one round's to the next one's
  const int32_t* ids = nullptr;
  int32_t* drafts = nullptr;       // [sequences of the step, kMostDraft]
  int32_t* host_drafts = nullptr;  // page-locked host memory
};
Status keep_drafts(const KeepDrafts& p, cudaStream_t stream);

// A continuation among a step's inputs.
struct ContinuedSequence {
  int32_t sequence, source;          // in this step and in the one before
  int32_t source_wanted;             // its first logit row there
  int32_t row, rows, first_wanted;   // in this one
  int32_t full_table, window_table;  // its pages, offsets in MoveOn::pages; -1: it has none
  int32_t sampling;                  // offset in the inputs of its list
  int32_t tiles, tile_count;         // offset in the inputs of its RowTiles
  int32_t unused;
};

// Gives continuations the tokens that follow the rows that hold of the step before, and moves their rows,
// slots, tiles and sampling on by the number of drafted ones that do. moved[sequence] = that number.
struct MoveOn {
  int32_t* inputs = nullptr;
  int sequences = 0, count = 0;  // offset of ContinuedSequence [count]
  int tokens = 0, positions = 0, full_slots = 0, window_slots = 0, sampling = 0, pages = 0, moved = 0;
  // The step before.
  const int32_t* sampled = nullptr;
  const int32_t* accepted = nullptr;
  const int32_t* drafts = nullptr;
};
Status move_on(const MoveOn& p, cudaStream_t stream);

}  // namespace moesaic::cuda
