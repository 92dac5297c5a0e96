// The rows that a layer computes: those of a batch for the model's layers, those of a draft for a draft
// head's.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/batch.h"

namespace moesaic {

struct LayerRow {
  int position = 0;
  int begin = 0;                        // no position before it is attended to
  std::span<const int32_t> pages = {};  // the sequence's page table for the layer's cache
  int query = 0;                        // its row among the queries

  // The first position that it attends to in a layer with this window (LayerShape::window).
  int first(int window) const { return window > 0 ? std::max(begin, position - window + 1) : begin; }
};

// All rows of a batch, with the pages of the sliding layers or with the others. The batch must outlive them.
inline std::vector<LayerRow> layer_rows(const Batch& batch, bool sliding) {
  std::vector<LayerRow> rows;
  for (const Sequence& s : batch.sequences) {
    for (int row = s.first_row; row < s.first_row + s.rows; ++row)
      rows.push_back({.position = batch.positions[static_cast<size_t>(row)],
                      .pages = sliding ? s.window_pages : s.full_pages,
                      .query = row});
  }
  return rows;
}

}  // namespace moesaic
