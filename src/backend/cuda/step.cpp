#include "backend/cuda/step.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace moesaic::cuda {
namespace {

constexpr int kTileInts = sizeof(RowTile) / sizeof(int32_t), kDrawInts = sizeof(Draw) / sizeof(int32_t);

// Splits that a decoding row's context covers.
int splits_of(int first, int last) {
  return last / kPageTokens / kSplitPages - first / kPageTokens / kSplitPages + 1;
}

// Calls decode(row, sequence) and prefill(tile) over the batch.
template <typename Decode, typename Prefill>
void for_tiles(const Batch& batch, int tile_tokens, Decode&& decode, Prefill&& prefill) {
  for (int s = 0; s < static_cast<int>(batch.sequences.size()); ++s) {
    const Sequence& sequence = batch.sequences[s];
    if (sequence.rows == 1) {
      decode(sequence.first_row, s);
      continue;
    }
    for (int row = 0; row < sequence.rows; row += tile_tokens)
      prefill(RowTile{sequence.first_row + row, std::min(tile_tokens, sequence.rows - row), s, 0});
  }
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
  l.sources = take(s.rows);
  l.draws = take(s.draws ? s.logit_rows * kDrawInts : 0);
  l.turn = take(1);
  l.decode_tiles = take(s.decode_tiles * kTileInts);
  l.prefill_tiles = take(s.prefill_tiles * kTileInts);
  l.full_partials = take(s.decode_tiles);
  l.window_partials = take(s.decode_tiles);
  l.full_tables = take(s.sequences);
  l.window_tables = take(s.sequences);
  l.pages = at;
  return l;
}

StepShape shape_of(const Batch& batch, int tile_tokens) {
  StepShape shape{.rows = batch.rows(),
                  .sequences = static_cast<int>(batch.sequences.size()),
                  .logit_rows = static_cast<int>(batch.logit_rows.size()),
                  .draws = !batch.draws.empty()};
  for_tiles(
      batch, tile_tokens,
      [&](int row, int) {
        ++shape.decode_tiles;
        shape.full_splits = std::max(shape.full_splits, splits_of(0, batch.positions[row]));
      },
      [&](const RowTile&) { ++shape.prefill_tiles; });
  shape.full_splits = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.full_splits)));
  return shape;
}

void pack(const Batch& batch, const StepShape& shape, int tile_tokens, int window,
          std::vector<int32_t>& out) {
  const StepLayout l = layout_of(shape);
  out.assign(l.pages, 0);
  std::copy(batch.tokens.begin(), batch.tokens.end(), out.begin() + l.tokens);
  std::copy(batch.positions.begin(), batch.positions.end(), out.begin() + l.positions);
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), out.begin() + l.logit_rows);
  std::fill_n(out.begin() + l.sources, batch.drawn.empty() ? batch.rows() : 0, -1);
  std::copy(batch.drawn.begin(), batch.drawn.end(), out.begin() + l.sources);
  if (shape.draws) std::memcpy(&out[l.draws], batch.draws.data(), batch.draws.size() * sizeof(Draw));
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
  int decode = 0, prefill = 0, full_partials = 0, window_partials = 0;
  const auto put_tile = [&](int at, const RowTile& tile) {
    out[at] = tile.row, out[at + 1] = tile.count, out[at + 2] = tile.sequence;
  };
  for_tiles(
      batch, tile_tokens,
      [&](int row, int sequence) {
        const int last = batch.positions[row];
        put_tile(l.decode_tiles + decode * kTileInts, {row, 1, sequence, 0});
        out[l.full_partials + decode] = full_partials;
        out[l.window_partials + decode] = window_partials;
        full_partials += splits_of(0, last);
        window_partials += splits_of(std::max(0, last - window + 1), last);
        ++decode;
      },
      [&](const RowTile& tile) { put_tile(l.prefill_tiles + prefill++ * kTileInts, tile); });
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    out[l.full_tables + s] = static_cast<int32_t>(out.size());
    out.insert(out.end(), batch.sequences[s].full_pages.begin(), batch.sequences[s].full_pages.end());
  }
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    out[l.window_tables + s] = static_cast<int32_t>(out.size());
    out.insert(out.end(), batch.sequences[s].window_pages.begin(), batch.sequences[s].window_pages.end());
  }
}

}  // namespace moesaic::cuda
