// Layers whose experts the host's CPU computes for a backend whose device has no room for them: packed
// weights, threads and kernels, and no device.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/model_config.h"
#include "core/weights.h"
#include "moesaic/status.h"

namespace moesaic {

// Rows that were routed to a layer's experts.
struct RoutedRows {
  int rows = 0;
  const float* normed = nullptr;   // [rows, hidden]
  const int32_t* ids = nullptr;    // [rows, top_k]; negative: somebody else's, for which nothing is added
  const float* weights = nullptr;  // [rows, top_k]
};

// One matrix of all experts of a layer as it lies in memory, for a device that copies it: pairs of MXFP4
// panels (backend/mxfp4_panels.h). gate_up: each pair has 16 gate rows, then the same up rows; down: 32 rows.
struct ExpertPanels {
  std::byte *data = nullptr, *scales = nullptr;
  int64_t experts = 0, pairs = 0;                // pairs of an expert
  int64_t pair_bytes = 0, pair_scale_bytes = 0;  // for one pair: data, scales
  // Pairs [n, n + 1) of each expert are in NUMA node n's memory, all experts' one behind the other; then
  // comes the next node's. [nodes + 1]
  std::vector<int64_t> node_begins;
  size_t data_bytes() const { return static_cast<size_t>(experts * pairs * pair_bytes); }
  size_t scale_bytes() const { return static_cast<size_t>(experts * pairs * pair_scale_bytes); }
  size_t bytes() const { return data_bytes() + scale_bytes(); }
};
struct LayerPanels {
  ExpertPanels gate_up, down;
};

class HostExperts {
 public:
  virtual ~HostExperts() = default;

  // Before add(): memory holds this part of each layer's experts, and run() reads the others from the model's
  // file, of which the layers that are added are views.
  virtual void hold(double /*share*/, const ModelWeights& /*weights*/) {}
  // As BackendCaps::measured, of experts that are read from the file; empty: none are.
  virtual std::string reads() const { return {}; }

  // Packs the experts of one more layer; the views are not read again afterwards, unless hold() said so.
  // Returns what run() calls it. Fails with one line for a damaged tensor or for lack of memory. name: of the
  // layer, for that.
  virtual Result<int> add(const LayerShape& shape, const LayerWeights& weights, const LayerAdapter& adapter,
                          const std::string& name) = 0;
  // Call it after the last layer. Takes working memory, and measures how weights are read best, if no earlier
  // measurement is kept.
  virtual Status ready() = 0;
  // out [rows, hidden] = the weighted sums of the experts' outputs. An id that is none of an expert is an
  // error, and so is a lack of memory.
  virtual Status run(int layer, const RoutedRows& rows, float* out) = 0;

  // The packed weights of a layer, which stay where they are; none if they are not MXFP4, or not all in
  // memory.
  virtual std::optional<LayerPanels> panels(int layer) = 0;
  virtual double bytes() const = 0;      // the packed weights' size
  virtual double read_bandwidth() = 0;   // GB/s that decoding can read them with
  virtual std::string name() const = 0;  // "cpu (avx512, 15 threads)"
};

// options: threads (0: one per core but one, which launches the device's work), cpu_pin, isa, cpu_prefetch,
// tuning_folder.
Result<std::unique_ptr<HostExperts>> create_host_experts(const BackendOptions& options);

// Bytes that a layer's packed experts take.
double host_expert_bytes(const LayerWeights& layer);
// Bytes that a layer's adapter adds to them.
double host_adapter_bytes(const LayerAdapter& adapter);

}  // namespace moesaic
