// The mixture-of-experts operator: norm, router, top-k, the work list, two grouped products, combine.
#pragma once

#include <map>

#include "backend/cuda/kernels/common/route.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/host_exchange.h"
#include "backend/cuda/ops/hot_slots.h"
#include "backend/cuda/ops/select.h"
#include "tuning/moe_kernels.h"
#include "tuning/tuning_file.h"

namespace moesaic::cuda {

// A layer's experts, and the kernels that are compiled for the model's.
LayerExperts experts_of(const LoadedModel& model, int layer);
std::span<const MoeKernelConfig> configs_of(const LoadedModel& model);

class Moe {
 public:
  // Memory for the activations of at most max_rows rows.
  std::vector<Wanted> buffers(const ModelConfig& config, int max_rows);
  // Call it once the buffers are allocated, for the same rows. fault: where kernels leave kGaveUp. ranks: of
  // the model's; it must stay there.
  Status ready(const ModelConfig& config, int max_rows, int* fault, RankExchange& ranks);
  // Makes the scratch memory what it is between steps, after one that had a fault or was not launched whole.
  Status reset(const LoadedModel& model, cudaStream_t stream) const;

  // The kernel for so many rows: the quickest as estimated by tuning/moe_kernels.h, or as measured.
  // find_config(): by name; an error if none of that name takes so many rows.
  const MoeKernelConfig& config_for(const LoadedModel& model, int rows);
  static Result<const MoeKernelConfig*> find_config(const LoadedModel& model, int rows,
                                                    std::string_view name);
  void prefer(std::vector<TunedStep> measured);

  // x += experts(norm(x)) of one layer, except for the deferred residual that is returned. trace: see
  // BackendOptions.
  Result<DeferredResidual> run(const LoadedModel& model, int layer, const Norm& norm,
                               const MoeKernelConfig& kernel_config, const Target& target,
                               const RouterTrace& trace, cudaStream_t stream);
  // The same for a layer whose experts the host has; nothing is deferred. hot: those that are here as well.
  Status run_on_host(const LoadedModel& model, int layer, const Norm& norm, HostExchange& host,
                     const HotSlots& hot, const RouterTrace& trace, cudaStream_t stream);
  // run() in two parts: the router's logits [rows, experts] of normed rows, and what comes after them.
  Status score_rows(const LoadedModel& model, int layer, const Norm& norm, const Target& target,
                    float* logits, cudaStream_t stream);
  Result<DeferredResidual> run_from_logits(const LoadedModel& model, int layer, const Norm& norm,
                                           const MoeKernelConfig& kernel_config, const float* logits,
                                           cudaStream_t stream);

 private:
  // Everything after the router's logits; and everything after the work list, for kernels that do not make
  // it.
  Result<DeferredResidual> route_and_run(const LoadedModel& model, int layer, const Norm& norm,
                                         const MoeKernelConfig& kernel_config, const Route& routing,
                                         cudaStream_t stream);
  Result<DeferredResidual> run_experts(const LoadedModel& model, int layer, const Norm& norm,
                                       const MoeKernelConfig& kernel_config, const Route& routing,
                                       cudaStream_t stream);
  Status run_decode(const LoadedModel& model, int layer, const Norm& norm, const float* logits,
                    cudaStream_t stream);
  Status run_choose(const Norm& norm, const Router& scores, const Route& routing, cudaStream_t stream) const;
  Status run_scores(const RouterConfig& config, const Norm& norm, Router scores, cudaStream_t stream) const;
  Status score_normed(Norm norm, const Router& scores, cudaStream_t stream) const;
  Router router_of(const LoadedModel& model, int layer, int rows, float* logits) const;
  Status trace_router(const ModelConfig& config, int layer, int rows, const RouterTrace& trace,
                      cudaStream_t stream);

  LayerExperts experts(const LoadedModel& model, int layer) const;
  const MoeKernelConfig& config_for_hot(const LoadedModel& model, int rows);

  RankExchange* ranks_ = nullptr;  // null: one rank
  DeviceBuffer normed_f32_, router_logits_, scratch_memory_;
  MoeScratch scratch_;  // in scratch_memory_, from ready() on
  std::vector<TunedStep> measured_;
  std::map<int, const MoeKernelConfig*> chosen_, chosen_hot_;  // by rows
};

}  // namespace moesaic::cuda
