// A checkpoint's matrices to packed ones.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/layer_ops.h"

namespace moesaic::cpu {

// A table that is only ever read by rows: a copy in its own format.
struct Table {
  Buffer data, scales;
  MatrixView view;  // without data: there is none
};
Result<Table> copy_table(const MatrixView& table, const std::string& name, ThreadPool& pool);

class LayerLoader {
 public:
  // wanted(m): the format that a dense matrix is to have in memory, or nothing: as stored.
  using Wanted = std::function<std::optional<Format>(const MatrixView& m)>;
  // source: the file of experts that are not all in memory.
  LayerLoader(const Kernels& kernels, ThreadPool& pool, Wanted wanted, ExpertSource source = {})
      : kernels_(kernels), pool_(pool), wanted_(std::move(wanted)), source_(std::move(source)) {}

  // Matrices one under the other.
  Result<PackedMatrix> pack(const std::vector<const MatrixView*>& sections, const std::string& name) const;
  // Everything but the cache. name: of the layer, for messages. Parts that the layer lacks are views without
  // data.
  Status load(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
              const std::string& name, Layer& layer) const;
  // The experts alone, or the dense MLP, and their part of the adapter.
  Status load_experts(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
                      const std::string& name, ExpertLayer& layer) const;

 private:
  Result<PackedMatrix> pack_experts(const std::vector<const ExpertsView*>& sections, Format format,
                                    const std::string& name) const;
  // Packs as many of the experts as there are places for; `pages` brings the others.
  Result<PackedMatrix> begin_pages(const LayerShape& shape, std::vector<ExpertsView> sections, Format format,
                                   const std::string& name, std::unique_ptr<ExpertPages>& pages) const;
  Status load_vectors(const LayerWeights& w, const std::string& name, Layer& layer) const;
  Status load_expert_biases(const LayerWeights& w, const std::string& name, ExpertLayer& layer) const;
  Result<PackedLowRank> pack(const LowRank& low, const std::string& name) const;
  Result<PackedLowRank> pack(const LowRankExperts& low, bool gate_up, const std::string& name) const;

  const Kernels& kernels_;
  ThreadPool& pool_;
  Wanted wanted_;
  ExpertSource source_;
};

// A vector's values, rows padded to whole panels; none where it has no data.
Result<std::vector<float>> read_vector(const MatrixView& m, const std::string& name);

}  // namespace moesaic::cpu
