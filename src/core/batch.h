// A batch crosses from the scheduler to a backend: one step's tokens. Prefill, decode, chunked prefill and
// speculative verification are all just a Batch.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_page.h"
#include "core/model_config.h"
#include "moesaic/status.h"

namespace moesaic {

// The KV cache is made of pages of page_tokens tokens. Layers with full attention and layers with a sliding
// window draw on two pools, because a window layer only ever needs the last `window` tokens.
struct KvLayout {
  int page_tokens = kPageTokens;
  int full_pages = 0;    // pages in the pool of the full-attention layers
  int window_pages = 0;  // pages in the pool of the sliding layers
  // The logits of so many rows of a step may be wanted. A backend keeps room for them beside the cache, and
  // makes more if a step has more.
  int logit_rows = 0;
};

struct Sequence {
  int first_row = 0;  // rows [first_row, first_row + rows) of the batch belong to this sequence, in order
  int rows = 0;
  int context = 0;  // tokens in the cache once this step has appended its rows
  // Page i holds positions [i * page_tokens, (i + 1) * page_tokens). An entry of window_pages whose page has
  // left every row's window is -1.
  std::vector<int32_t> full_pages, window_pages;
};

inline constexpr int kMostLogprobs = 100;
// So many temperatures below the top a token has no chance in a double's precision.
inline constexpr double kNoChance = -60;

// A backend that can sample (Backend::can_sample) takes a token from a row of logits in this way. The tokens
// stand in order of likelihood, the lower id of equals first. The first top_k are kept, then the fewest of
// these whose share reaches top_p, then those whose logit lies at most -least temperatures below the top. The
// token is the one in whose share `uniform` falls, in that order; in order of ids if neither top_k nor top_p
// cuts. core/choose_token.h does the same on the host.
struct DeviceSampling {
  double temperature = 0;  // 0: the likeliest token
  double top_p = 1;
  double least = kNoChance;
  double uniform = 0;  // in [0, 1)
  int32_t top_k = 0;   // 0: all
  // -1: none; n: the log-probabilities of the token and of the n likeliest, before temperature and filters.
  int32_t logprobs = -1;
};

// A sequence that goes on from the step before while only the backend knows how many drafted rows of that
// step hold. In the batch it stands as if none did: the backend moves its rows on by the number that did, and
// with them positions and places in pages. The first row's token is what was sampled behind the last row that
// holds; the others' are the draft that DraftHead::begin_draft() made behind it. continuation.h says the same
// in code.
struct Continuation {
  int sequence = 0;  // its index in this batch: all its rows give logits
  int source = 0;    // its index in the step before
  // Row i's is sampling[n + i] where n drafted rows hold, of which there may be sampling.size() - rows.
  std::vector<DeviceSampling> sampling;
};

struct Batch {
  std::vector<int32_t> tokens;     // [rows]
  std::vector<int32_t> positions;  // [rows], position of each token in its sequence
  std::vector<Sequence> sequences;
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // [logit_rows] the backend samples the row's token and keeps the logits. Empty: the host takes the logits.
  std::vector<DeviceSampling> sampling;
  // Indices into logit_rows, ascending, in a batch that is sampled: the host takes these rows' logits too,
  // and chooses their tokens itself.
  std::vector<int32_t> host_rows;
  // [rows] an index into the tokens that the previous step sampled, which the host need not know yet, or -1:
  // the token is in `tokens`. Empty: all are.
  std::vector<int32_t> token_sources;
  std::vector<Continuation> continuations;  // by ascending sequence, in a batch that is sampled

  int rows() const { return static_cast<int>(tokens.size()); }
};

// A sequence's logit rows: the index of the first one among all, and how many there are.
struct WantedRows {
  int first = 0, count = 0;
};
WantedRows wanted_rows(const Batch& batch, int sequence);
// Returns how many rows the sequence may be moved on by at most; 0: it is no continuation.
int most_moved(const Batch& batch, int sequence);

// One line that names the first impossible value.
Status validate(const KvLayout& layout);
// Everything that the ops of a backend rely on: 1 to max_rows rows, sequences that tile them in order,
// positions that end each sequence's context, token ids in range, a page in the pool for every position that
// some row attends to, wherever a continuation puts it, logit_rows ascending and in range, sampling for all
// of them or none, with at most kMostLogprobs log-probabilities, host_rows among them. One line that names
// the first violation.
Status validate(const Batch& batch, const ModelConfig& config, const KvLayout& layout, int max_rows);

}  // namespace moesaic
