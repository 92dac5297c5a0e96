#include "backend/cuda/step/draft_input.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/kernels/common/draft.h"

namespace moesaic::cuda {
namespace {

// A sequence with what its rounds need.
struct Drafting {
  int sequence = 0;  // its index in the step
  const Sequence* of_step = nullptr;
  std::span<const int32_t> next_tokens;
  int drafts = 0;
  std::span<const DeviceSampling> sampling;
  std::span<const int32_t> pages;
  int begin = 0;
  size_t index = 0, first_token = 0;  // in draft()'s lists
  int first_position = 0;             // its rows' in the first round
  int table = 0;                      // where its pages begin
  int row = 0;                        // its first row in the first round
  std::vector<int> places = {};       // in each round
  // A begun draft takes in all its rows.
  WantedRows wanted = {};
  int moves = 0;  // rows that it may be moved on by

  int rows() const { return static_cast<int>(next_tokens.size()) + wanted.count; }
  // Rows that hold, whatever was sampled.
  int sure_rows() const { return rows() - drafted_rows(); }
  int drafted_rows() const { return std::max(0, wanted.count - 1); }
};

class Packer {
 public:
  // begun: behind a step whose tokens are not known.
  explicit Packer(bool begun) : begun_(begun) {}
  template <typename Drafted>  // DraftSequence or SequenceAhead
  void add(const Drafted& d, const Batch& batch);
  DraftInput run();

 private:
  // Room for `count` int32, which begins at a multiple of 16 bytes.
  int take(size_t count) {
    const size_t start = out_.packed.size();
    out_.packed.resize(start + (count + 3) / 4 * 4);
    return static_cast<int>(start);
  }
  void begin_round(int round, int rows, int logit_rows);
  void add_row(int round, const Drafting& d, int position, int32_t token, int source, int place);
  void add_logit_row(int round, Drafting& d, int position);
  void add_round(int round);
  void add_begun();

  DraftInput out_;
  bool begun_;
  std::vector<Drafting> sequences_;
  std::vector<int32_t> positions_;
};

template <typename Drafted>
void Packer::add(const Drafted& d, const Batch& batch) {
  const Sequence& s = batch.sequences[static_cast<size_t>(d.sequence)];
  const size_t token =
      sequences_.empty() ? 0 : sequences_.back().first_token + static_cast<size_t>(sequences_.back().drafts);
  sequences_.push_back({.sequence = d.sequence,
                        .of_step = &s,
                        .next_tokens = d.next_tokens,
                        .drafts = d.drafts,
                        .sampling = d.sampling,
                        .pages = d.full_pages.empty() ? s.full_pages : d.full_pages,
                        .begin = d.begin,
                        .index = sequences_.size(),
                        .first_token = token,
                        .first_position = batch.positions[static_cast<size_t>(s.first_row)]});
  if (!begun_) return;
  sequences_.back().wanted = wanted_rows(batch, d.sequence);
  sequences_.back().moves = most_moved(batch, d.sequence);
}

void Packer::begin_round(int round, int rows, int logit_rows) {
  DraftRoundInput r{.first_row = static_cast<int>(positions_.size())};
  r.tokens = take(static_cast<size_t>(rows)), r.slots = take(static_cast<size_t>(rows));
  r.sources = take(static_cast<size_t>(rows)), r.places = take(static_cast<size_t>(rows));
  r.sampling = take(static_cast<size_t>(logit_rows) * kSamplingInts);
  r.tiles = take(static_cast<size_t>(logit_rows) * kTileInts);
  out_.rounds.resize(static_cast<size_t>(round) + 1);
  out_.rounds.back() = r;
}

void Packer::add_row(int round, const Drafting& d, int position, int32_t token, int source, int place) {
  DraftRoundInput& r = out_.rounds[static_cast<size_t>(round)];
  int32_t* const to = out_.packed.data() + r.rows++;
  to[r.tokens] = token;
  to[r.slots] = d.pages[static_cast<size_t>(position / kPageTokens)] * kPageTokens + position % kPageTokens;
  to[r.sources] = source;
  to[r.places] = place;
  positions_.push_back(position);
}

void Packer::add_logit_row(int round, Drafting& d, int position) {
  DraftRoundInput& r = out_.rounds[static_cast<size_t>(round)];
  const int place = r.logit_rows++;
  d.places.push_back(place);
  // Pages before the head's first K and V are not attended to: places count from the page that has them.
  const int skipped = d.begin / kPageTokens, at = position - skipped * kPageTokens;
  const RowTile tile{.row = place,
                     .count = 1,
                     .position = at,
                     .table = {d.table + skipped, d.table + skipped},
                     .written = at};
  std::memcpy(&out_.packed[static_cast<size_t>(r.tiles + place * kTileInts)], &tile, sizeof(tile));
  DeviceSampling sampling;
  if (!d.sampling.empty()) sampling = d.sampling[static_cast<size_t>(round)];
  sampling.logprobs = -1;
  std::memcpy(&out_.packed[static_cast<size_t>(r.sampling + place * kSamplingInts)], &sampling,
              sizeof(sampling));
  const int furthest = at + d.moves + d.drafted_rows();
  r.kv_splits = std::max(r.kv_splits, static_cast<int>(std::bit_ceil<unsigned>(
                                          static_cast<unsigned>(kv_splits_of(furthest / kPageTokens + 1)))));
  out_.drafted.push_back({.round = round,
                          .place = place,
                          .sequence = d.index,
                          .token = d.first_token + static_cast<size_t>(round),
                          .sampling = sampling});
}

// The first round takes in rows of the step; each later one has a row for each sequence that wants more
// drafts.
void Packer::add_round(int round) {
  int rows = 0, logit_rows = 0;
  for (const Drafting& d : sequences_) {
    if (d.drafts > round) ++logit_rows;
    rows += round == 0 ? d.rows() : d.drafts > round;
  }
  begin_round(round, rows, logit_rows);
  for (Drafting& d : sequences_) {
    const bool drafts = d.drafts > round;
    const int last = d.first_position + d.sure_rows() - 1;
    if (round > 0 && !drafts) continue;
    const int before = round > 0 ? d.places.back() : 0;
    if (drafts) add_logit_row(round, d, last + round);
    if (round > 0) {
      add_row(round, d, last + round, 0, before, d.places.back());
      continue;
    }
    d.row = out_.rounds[0].rows;
    const std::span<const int32_t> next = d.next_tokens;
    for (int i = 0; i < d.rows(); ++i)
      add_row(round, d, d.first_position + i, i < std::ssize(next) ? next[static_cast<size_t>(i)] : 0,
              d.of_step->first_row + i, drafts && i + 1 == d.sure_rows() ? d.places[0] : -1);
  }
}

void Packer::add_begun() {
  constexpr size_t kInts = sizeof(BegunSequence) / sizeof(int32_t);
  out_.begun = take(sequences_.size() * kInts);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Drafting& d = sequences_[i];
    std::vector<DeviceSampling> sampling(d.sampling.begin(), d.sampling.end());
    for (DeviceSampling& s : sampling) s.logprobs = -1;
    BegunSequence begun{.sequence = d.sequence,
                        .step_row = d.of_step->first_row,
                        .rows = d.rows(),
                        .first_wanted = d.wanted.first,
                        .wanted = d.wanted.count,
                        .row = d.row,
                        .table = d.table,
                        .skipped = d.begin / kPageTokens,
                        .sampling = -1,
                        .drafts = d.drafts,
                        .places = {}};
    std::ranges::copy(d.places, begun.places);
    if (!sampling.empty()) {
      begun.sampling = take(sampling.size() * kSamplingInts);
      std::memcpy(&out_.packed[static_cast<size_t>(begun.sampling)], sampling.data(),
                  sampling.size() * sizeof(DeviceSampling));
    }
    std::memcpy(&out_.packed[static_cast<size_t>(out_.begun) + i * kInts], &begun, sizeof(begun));
  }
}

DraftInput Packer::run() {
  out_.zero = take(1);
  int tables = 0, rounds = 1;
  for (Drafting& d : sequences_) {
    d.table = tables;
    tables += static_cast<int>(d.pages.size());
    rounds = std::max(rounds, d.drafts);
  }
  out_.pages = take(static_cast<size_t>(tables));
  for (const Drafting& d : sequences_) std::ranges::copy(d.pages, out_.packed.begin() + out_.pages + d.table);
  for (int round = 0; round < rounds; ++round) add_round(round);
  if (begun_) add_begun();
  out_.positions = take(positions_.size());
  std::ranges::copy(positions_, out_.packed.begin() + out_.positions);
  out_.rows = static_cast<int>(positions_.size());
  return std::move(out_);
}

}  // namespace

DraftInput draft_input(std::span<const DraftSequence> sequences, const Batch& batch) {
  Packer packer(false);
  for (const DraftSequence& d : sequences) packer.add(d, batch);
  return packer.run();
}

DraftInput draft_input(std::span<const SequenceAhead> sequences, const Batch& batch) {
  Packer packer(true);
  for (const SequenceAhead& d : sequences) packer.add(d, batch);
  return packer.run();
}

}  // namespace moesaic::cuda
