#include "backend/cuda/step/step_input.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace moesaic::cuda {
namespace {

// Calls decode(tile) and prefill(tile) over the batch, the tiles without tables.
template <typename Decode, typename Prefill>
void for_tiles(const Batch& batch, const Tiling& tiling, Decode&& decode, Prefill&& prefill) {
  for (int s = 0; s < static_cast<int>(batch.sequences.size()); ++s) {
    const Sequence& sequence = batch.sequences[s];
    const int end = sequence.first_row + sequence.rows;
    const bool decodes = sequence.rows <= tiling.most_decode_rows;
    const int tokens = decodes ? 1 : tiling.tokens;
    for (int row = sequence.first_row; row < end; row += tokens) {
      const RowTile tile{.row = row,
                         .count = std::min(tokens, end - row),
                         .position = batch.positions[row],
                         .written = batch.positions[sequence.first_row]};
      if (decodes) {
        decode(s, tile);
      } else {
        prefill(s, tile);
      }
    }
  }
}

// Appends the tables and says where they begin.
std::vector<int32_t> put_tables(const Batch& batch, std::vector<int32_t> Sequence::*pages,
                                std::vector<int32_t>& out, int start) {
  std::vector<int32_t> starts;
  for (const Sequence& sequence : batch.sequences) {
    starts.push_back(static_cast<int32_t>(out.size()) - start);
    out.insert(out.end(), (sequence.*pages).begin(), (sequence.*pages).end());
  }
  return starts;
}

}  // namespace

StepLayout layout_of(const StepShape& s) {
  StepLayout l{};
  int at = 0;
  const auto take = [&](int count) {
    const int start = at;
    at += (count + 3) / 4 * 4;  // tiles are read as 16 bytes
    return start;
  };
  l.tokens = take(s.rows);
  l.positions = take(s.rows);
  l.full_slots = take(s.rows);
  l.window_slots = take(s.rows);
  l.logit_rows = take(s.logit_rows);
  l.token_sources = take(s.rows);
  l.sampling = take(s.samples ? s.logit_rows * kSamplingInts : 0);
  l.result_buffer = take(1);
  l.epoch = take(1);
  l.decode_tiles = take(s.decode_tiles * kTileInts);
  l.prefill_tiles = take(s.prefill_tiles * kTileInts);
  l.pages = at;
  return l;
}

StepShape shape_of(const Batch& batch, const Tiling& tiling) {
  StepShape shape{.rows = batch.rows(),
                  .sequences = static_cast<int>(batch.sequences.size()),
                  .logit_rows = static_cast<int>(batch.logit_rows.size()),
                  .samples = !batch.sampling.empty()};
  for_tiles(
      batch, tiling,
      [&](int sequence, const RowTile& tile) {
        ++shape.decode_tiles;
        const int position = tile.position + most_moved(batch, sequence);
        shape.kv_splits = std::max(shape.kv_splits, kv_splits_of(position / kPageTokens + 1));
      },
      [&](int, const RowTile&) { ++shape.prefill_tiles; });
  // Rounded up, so that a few graphs serve all contexts.
  shape.kv_splits = static_cast<int>(std::bit_ceil<unsigned>(shape.kv_splits));
  return shape;
}

std::vector<PackedSequence> pack(const Batch& batch, const StepShape& shape, const Tiling& tiling,
                                 std::vector<int32_t>& out) {
  const StepLayout l = layout_of(shape);
  out.assign(l.pages, 0);
  std::copy(batch.tokens.begin(), batch.tokens.end(), out.begin() + l.tokens);
  std::copy(batch.positions.begin(), batch.positions.end(), out.begin() + l.positions);
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), out.begin() + l.logit_rows);
  std::fill_n(out.begin() + l.token_sources, batch.token_sources.empty() ? batch.rows() : 0, -1);
  std::copy(batch.token_sources.begin(), batch.token_sources.end(), out.begin() + l.token_sources);
  if (shape.samples)
    std::memcpy(&out[l.sampling], batch.sampling.data(), batch.sampling.size() * sizeof(DeviceSampling));
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const Sequence& sequence = batch.sequences[s];
    for (int row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
      const int page = batch.positions[row] / kPageTokens, token = batch.positions[row] % kPageTokens;
      out[l.full_slots + row] =
          sequence.full_pages.empty() ? 0 : sequence.full_pages[page] * kPageTokens + token;
      out[l.window_slots + row] =
          sequence.window_pages.empty() ? 0 : sequence.window_pages[page] * kPageTokens + token;
    }
  }
  const std::vector<int32_t> full = put_tables(batch, &Sequence::full_pages, out, l.pages),
                             window = put_tables(batch, &Sequence::window_pages, out, l.pages);
  std::vector<PackedSequence> packed(batch.sequences.size());
  int decode = l.decode_tiles, prefill = l.prefill_tiles;
  const auto put = [&](int& at, int sequence, RowTile tile) {
    tile.table[0] = full[sequence], tile.table[1] = window[sequence];
    std::memcpy(&out[at], &tile, sizeof(tile));
    if (packed[sequence].tile_count++ == 0) packed[sequence].tiles = at;
    at += kTileInts;
  };
  for_tiles(
      batch, tiling, [&](int sequence, const RowTile& tile) { put(decode, sequence, tile); },
      [&](int sequence, const RowTile& tile) { put(prefill, sequence, tile); });
  for (size_t s = 0; s < packed.size(); ++s) {
    if (!batch.sequences[s].full_pages.empty()) packed[s].full_table = full[s];
    if (!batch.sequences[s].window_pages.empty()) packed[s].window_table = window[s];
  }
  return packed;
}

PackedContinuations pack_continuations(const Batch& batch, std::span<const PackedSequence> sequences,
                                       std::span<const int> first_wanted, std::vector<int32_t>& out) {
  constexpr size_t kInts = sizeof(ContinuedSequence) / sizeof(int32_t);
  const auto take = [&](size_t count) {
    const size_t at = (out.size() + 3) / 4 * 4;
    out.resize(at + count);
    return static_cast<int>(at);
  };
  PackedContinuations packed{.count = static_cast<int>(batch.continuations.size())};
  packed.moved = take(batch.sequences.size());
  packed.sequences = take(batch.continuations.size() * kInts);
  for (size_t i = 0; i < batch.continuations.size(); ++i) {
    const Continuation& c = batch.continuations[i];
    const Sequence& s = batch.sequences[static_cast<size_t>(c.sequence)];
    const PackedSequence& at = sequences[static_cast<size_t>(c.sequence)];
    const ContinuedSequence continued{.sequence = c.sequence,
                                      .source = c.source,
                                      .source_wanted = first_wanted[static_cast<size_t>(c.source)],
                                      .row = s.first_row,
                                      .rows = s.rows,
                                      .first_wanted = wanted_rows(batch, c.sequence).first,
                                      .full_table = at.full_table,
                                      .window_table = at.window_table,
                                      .sampling = take(c.sampling.size() * kSamplingInts),
                                      .tiles = at.tiles,
                                      .tile_count = at.tile_count};
    std::memcpy(&out[continued.sampling], c.sampling.data(), c.sampling.size() * sizeof(DeviceSampling));
    std::memcpy(&out[packed.sequences + i * kInts], &continued, sizeof(continued));
  }
  return packed;
}

MoveOn move_on_inputs(const StepLayout& at, const PackedContinuations& continuations, int32_t* inputs) {
  return {.inputs = inputs,
          .sequences = continuations.sequences,
          .count = continuations.count,
          .tokens = at.tokens,
          .positions = at.positions,
          .full_slots = at.full_slots,
          .window_slots = at.window_slots,
          .sampling = at.sampling,
          .pages = at.pages,
          .moved = continuations.moved};
}

}  // namespace moesaic::cuda
