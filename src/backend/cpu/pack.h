// Weights in the order that the kernels stream: panels of 16 rows (layouts in kernels.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "core/weights.h"

namespace moesaic::cpu {

// Sections of matrices, one under the other, each padded with zero rows to whole panels. All share a format
// and their columns. The experts of a layer are one PackedMatrix with a section per expert (and per gate and
// up).
//
// Pairs are numbered section by section. On a machine with several NUMA nodes each node has a share of every
// section's pairs, so that all nodes' memory is read whichever experts a step reaches, and a node's shares
// lie in memory together, since pages of 2 MB hold many pairs.
struct PackedMatrix {
  Format format = Format::kF32;
  int64_t cols = 0;
  int64_t panels = 0;
  int64_t data_stride = 0, scale_stride = 0;  // bytes per pair of panels
  Buffer data, scales;                        // whole pairs: an odd last panel has an empty neighbour
  int64_t sections = 1;
  std::vector<int64_t> node_begins;  // [nodes + 1]: a section's pairs [n, n + 1) are node n's
  // Where in memory a pair lies, counted in pairs.
  int64_t slot(int64_t pair) const { return node_begins.size() <= 2 ? pair : slot_by_node(pair); }
  // All pairs of one node: [first, end) in memory.
  std::pair<int64_t, int64_t> node_slots(int node) const {
    return {sections * node_begins[node], sections * node_begins[node + 1]};
  }
  int64_t pairs() const { return (panels + kPair - 1) / kPair; }
  double bytes() const {
    return static_cast<double>(pairs()) * static_cast<double>(data_stride + scale_stride);
  }
  int64_t slot_by_node(int64_t pair) const;
};

inline int64_t panels_of(int64_t rows) { return (rows + kPanel - 1) / kPanel; }
inline int64_t padded(int64_t rows) { return panels_of(rows) * kPanel; }

// The packed format of a matrix stored as `format`, and the activations that it meets.
Format packed_format(Format format, std::optional<Format> wanted);
Act act_format(Format packed, const Kernels& kernels);

// Which source row feeds each panel row: panel p holds rows [first, first + 16) of *source, less where it
// ends.
struct PanelSource {
  const MatrixView* source;
  int64_t first;
};

// Packs one panel per entry of sources, on the threads that will read them, so that memory is first touched
// on their node. sections: of equal size, in whole pairs if there are several. name is for errors: a NaN
// scale or a weight that is not finite.
Result<PackedMatrix> pack_panels(Format format, int64_t cols, std::vector<PanelSource> sources,
                                 const std::string& name, const Kernels& kernels, ThreadPool& pool,
                                 int64_t sections = 1);

// A matrix without values.
Result<PackedMatrix> empty_panels(Format format, int64_t cols, int64_t panels, ThreadPool& pool,
                                  int64_t sections);
// Packs some sections of it: sources has the panels of section to[0], then those of to[1] and so on.
Status pack_sections(const PackedMatrix& packed, std::span<const int> to,
                     std::span<const PanelSource> sources, const std::string& name, const Kernels& kernels,
                     ThreadPool& pool);

// Groups of matrices of equal size one after the other; within a group their panels alternate.
std::vector<PanelSource> alternating_panels(std::span<const MatrixView> matrices, size_t group);
// Sections in order.
std::vector<PanelSource> stack(const std::vector<const MatrixView*>& sections);

}  // namespace moesaic::cpu
