#include "backend/host_experts.h"

#include <algorithm>
#include <deque>
#include <new>

#include "backend/cpu/experts.h"
#include "backend/cpu/find_kernels.h"
#include "backend/cpu/layer_loader.h"
#include "backend/cpu/probe.h"
#include "base/cpu_topology.h"
#include "base/error.h"

namespace moesaic {
namespace cpu {
namespace {

// The workers wait awake for the next layer while the device has its part of it.
constexpr int64_t kSpinNs = 2'000'000;

// One core launches the device's work and waits for it.
ThreadPlan plan_of(const BackendOptions& options) {
  const CpuTopology topology = read_cpu_topology(options.system_root, current_affinity());
  ThreadPlan plan = plan_threads(topology, options.threads, options.cpu_pin);
  if (options.threads > 0 || plan.threads < 3) return plan;
  return plan_threads(topology, plan.threads - 1, options.cpu_pin);
}

class CpuHostExperts final : public HostExperts {
 public:
  CpuHostExperts(const Kernels& kernels, const BackendOptions& options, std::optional<GemmTuning> prefetch)
      : kernels_(kernels),
        tuning_folder_(options.tuning_folder),
        asked_prefetch_(prefetch),
        pool_(plan_of(options), kSpinNs) {}

  void hold(double share, const ModelWeights& weights) override { source_ = source_of(weights, share); }
  std::string reads() const override { return file_reads_.words(); }
  Result<int> add(const LayerShape& shape, const LayerWeights& weights, const LayerAdapter& adapter,
                  const std::string& name) override;
  Status ready() override;
  Status run(int layer, const RoutedRows& rows, float* out) override;
  std::optional<LayerPanels> panels(int layer) override;
  double bytes() const override;
  double read_bandwidth() override;
  std::string name() const override {
    return fmt::format("cpu ({}, {} threads)", kernels_.name, pool_.threads());
  }

 private:
  DecodeProbe make_probe();

  const Kernels& kernels_;
  std::string tuning_folder_;
  std::optional<GemmTuning> asked_prefetch_;
  ThreadPool pool_;
  ChosenTuning chosen_;
  Products products_{kernels_, pool_, chosen_, MoePath::kAuto};
  ExpertOps ops_{products_, {}};
  std::deque<ExpertLayer> layers_;
  ExpertSource source_;
  FileReads file_reads_;  // while the layers were added
  std::vector<ReadPattern> read_patterns_;
};

Result<int> CpuHostExperts::add(const LayerShape& shape, const LayerWeights& weights,
                                const LayerAdapter& adapter, const std::string& name) {
  const LayerLoader loader(
      kernels_, pool_, [](const MatrixView&) { return std::nullopt; }, source_);
  RETURN_IF_ERROR(loader.load_experts(shape, weights, adapter, name, layers_.emplace_back()));
  return static_cast<int>(std::ssize(layers_)) - 1;
}

// There is no lm_head here. What is measured of it stands for nothing but itself, so experts take its place.
DecodeProbe CpuHostExperts::make_probe() {
  std::vector<ExpertWeights> layers;
  for (const ExpertLayer& layer : layers_) layers.push_back({&layer.gate_up, &layer.down});
  const ExpertLayer& first = layers_.front();
  return {kernels_,
          pool_,
          products_.workspaces,
          std::move(layers),
          first.gate_up,
          static_cast<int>(first.places()),
          first.shape.experts_per_token,
          {act_format(first.gate_up.format, kernels_), act_format(first.down.format, kernels_)}};
}

Status CpuHostExperts::ready() {
  int64_t columns = 0;
  bool adapters = false;
  for (const ExpertLayer& layer : layers_) {
    file_reads_.add(layer);
    columns = std::max({columns, layer.gate_up.cols, layer.down.cols});
    adapters |= layer.gate_up_adapter.rank + layer.down_adapter.rank > 0;
  }
  RETURN_IF_ERROR(products_.make_room(columns, adapters));
  if (asked_prefetch_) {
    chosen_ = {.tuning = {.experts = *asked_prefetch_, .dense = *asked_prefetch_},
               .source = TuningSource::kAsked};
  } else if (!layers_.empty()) {
    DecodeProbe probe = make_probe();
    chosen_ = tuning_for(probe, kernels_, pool_.threads(), tuning_folder_);
  }
  return {};
}

Status CpuHostExperts::run(int index, const RoutedRows& routed, float* out) {
  const ExpertLayer& layer = layers_[static_cast<size_t>(index)];
  const LayerShape& shape = layer.shape;
  const std::span ids(routed.ids, static_cast<size_t>(routed.rows) * shape.experts_per_token);
  for (const int32_t id : ids) {
    if (id >= shape.experts || id < -shape.experts)
      return error(StatusCode::kInternal, "experts on the host: {} is none of {} experts", id, shape.experts);
  }
  try {
    pool_.for_each(routed.rows,
                   [&](int64_t row, int) { std::fill_n(out + row * shape.hidden, shape.hidden, 0.0f); });
    return ops_.run(layer, routed.rows, routed.normed, {.ids = ids, .weights = routed.weights}, out);
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kOutOfMemory, "experts on the host: no memory for the activations of {} tokens",
                 routed.rows);
  }
}

ExpertPanels panels_of(const PackedMatrix& m) {
  return {.data = m.data.as(),
          .scales = m.scales.as(),
          .experts = m.sections,
          .pairs = m.pairs() / m.sections,
          .pair_bytes = m.data_stride,
          .pair_scale_bytes = m.scale_stride,
          .node_begins = m.node_begins};
}

std::optional<LayerPanels> CpuHostExperts::panels(int index) {
  const ExpertLayer& layer = layers_[static_cast<size_t>(index)];
  if (layer.gate_up_pages || layer.gate_up.format != Format::kMxfp4 || layer.down.format != Format::kMxfp4)
    return std::nullopt;
  return LayerPanels{panels_of(layer.gate_up), panels_of(layer.down)};
}

double CpuHostExperts::bytes() const {
  double bytes = 0;
  for (const ExpertLayer& layer : layers_) bytes += layer.experts_bytes();
  return bytes;
}

double CpuHostExperts::read_bandwidth() {
  if (layers_.empty()) return 0;
  DecodeProbe probe = make_probe();
  return decode_bandwidth(probe, pool_, chosen_.tuning, read_patterns_);
}

}  // namespace
}  // namespace cpu

double host_expert_bytes(const LayerWeights& layer) {
  ModelWeights alone;
  alone.layers.push_back(layer);
  return stored_bytes(alone).experts;
}

double host_adapter_bytes(const LayerAdapter& adapter) {
  ModelWeights alone;
  alone.adapters.push_back({.qkv = {}, .o = {}, .gate_up = adapter.gate_up, .down = adapter.down});
  return stored_bytes(alone).adapters;
}

Result<std::unique_ptr<HostExperts>> create_host_experts(const BackendOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<cpu::GemmTuning> prefetch, cpu::parse_prefetch(options.cpu_prefetch));
  ASSIGN_OR_RETURN(const cpu::Kernels* const kernels, cpu::find_kernels(options.isa));
  return std::unique_ptr<HostExperts>(new cpu::CpuHostExperts(*kernels, options, prefetch));
}

}  // namespace moesaic
