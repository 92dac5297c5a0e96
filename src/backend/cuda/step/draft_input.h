// The inputs that the kernels of one draft() read besides weights and activations: a packed array of int32
// that is copied to the device in one piece. Everything but the drafted tokens is known before the first
// round, or found out on the device, so that all rounds run without the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/draft_batch.h"

namespace moesaic::cuda {

// The rows of a round, as DraftRounds (core/draft_batch.h) has them. Those whose logits give a token follow
// each other in buffers of their own: a row's place there. Offsets in int32.
struct DraftRoundInput {
  int rows = 0, logit_rows = 0;
  int kv_splits = 0;  // for the longest context, rounded up to a power of two
  int first_row = 0;  // the round's first, among the rows of all rounds
  int tokens = 0;     // [rows]; of the first round; those of later ones are written on the device
  int slots = 0;      // [rows] page * kPageTokens + token in the page
  int sources = 0;    // [rows] of the first round: rows of the step. Later: places of the round before
  int places = 0;     // [rows], -1: no logits are wanted
  int sampling = 0;   // [logit_rows] DeviceSampling
  int tiles = 0;      // [logit_rows] RowTile, each one row
};

struct DraftInput {
  std::vector<DraftRoundInput> rounds;
  std::vector<int32_t> packed;
  int rows = 0;       // rows of all rounds
  int positions = 0;  // offset: [rows]
  int zero = 0;       // offset: a 0
  int pages = 0;      // offset: page tables, one behind the other
  // Each round's logit rows, in their order: the sequence, and where in the tokens of draft() its token
  // goes.
  struct Drafted {
    int round = 0, place = 0;
    size_t sequence = 0, token = 0;
    DeviceSampling sampling = {};
  };
  std::vector<Drafted> drafted;
  int begun = 0;  // offset: BegunSequence [sequences]; of sequences whose step is not done
};

// sequences, batch: as validate() of core/draft_batch.h passes them.
DraftInput draft_input(std::span<const DraftSequence> sequences, const Batch& batch);
// The same behind a step whose tokens are not known: as if no drafted row held. hold_rows()
// (kernels/common/draft.h) changes what depends on that.
DraftInput draft_input(std::span<const SequenceAhead> sequences, const Batch& batch);

}  // namespace moesaic::cuda
