// The mixture-of-experts operator: norm, router, top-k, the work list, two grouped products, combine.
#pragma once

#include <map>

#include "backend/cuda/ops/route.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/weights/model.h"
#include "tuning/moe_kernels.h"
#include "tuning/tuning_file.h"

namespace moesaic::cuda {

// The kernels that are compiled for the model's experts.
std::span<const MoeKernelConfig> configs_of(const Model& model);

class Moe {
 public:
  // Memory for the activations of at most max_rows rows.
  std::vector<Wanted> buffers(const ModelConfig& config, int max_rows);

  // The kernel for so many rows: the quickest by tuning/moe_kernels.h, or as measured. By name: an
  // error where there is none of that name for so many rows.
  const MoeKernelConfig& config_for(const Model& model, int rows);
  static Result<const MoeKernelConfig*> find_config(const Model& model, int rows, std::string_view name);
  void prefer(std::vector<TunedStep> measured);

  // x += experts(norm(x)) of one layer; what is returned is not added yet. trace: see BackendOptions.
  Result<DeferredResidual> run(const Model& model, int layer, const Norm& norm,
                               const MoeKernelConfig& kernel_config, const Target& target,
                               const RouterTrace& trace, cudaStream_t stream);
  // The same in two parts: the router's logits [rows, experts] of normed rows, and what comes after them.
  Status score_rows(const Model& model, int layer, const Norm& norm, const Target& target, float* logits,
                    cudaStream_t stream);
  Result<DeferredResidual> run_from_logits(const Model& model, int layer, const Norm& norm,
                                           const MoeKernelConfig& kernel_config, const float* logits,
                                           cudaStream_t stream);

 private:
  // What comes once there are logits, and once there are jobs as well, where the products do not make them.
  Result<DeferredResidual> route_and_run(const Model& model, int layer, const Norm& norm,
                                         const MoeKernelConfig& kernel_config, const Route& routing,
                                         cudaStream_t stream);
  Result<DeferredResidual> run_experts(const Model& model, int layer, const Norm& norm,
                                       const MoeKernelConfig& kernel_config, const Route& routing,
                                       cudaStream_t stream);
  Status run_products(const Model& model, const Layer& layer, const Norm& norm,
                      const MoeKernelConfig& kernel_config, const Route& routing, cudaStream_t stream);
  Status run_slabs(const Model& model, int layer, const Norm& norm, const float* logits, cudaStream_t stream);
  Status run_split(const Model& model, const Layer& layer, const Norm& norm, const Route& routing,
                   cudaStream_t stream);
  Status run_wide(const Model& model, const Layer& layer, const Norm& norm, int tile, cudaStream_t stream);
  Status run_jobs(const Model& model, const Layer& layer, const Norm& norm, int tile, cudaStream_t stream);
  Status run_w4a8(const Model& model, const Layer& layer, const Norm& norm,
                  const MoeKernelConfig& kernel_config, cudaStream_t stream);
  Status run_scores(const RouterConfig& config, const Norm& norm, Router scores, cudaStream_t stream) const;
  Router router_of(const Model& model, int layer, int rows, float* logits) const;
  Route routing_of(const Model& model, int rows, int tile, const float* logits) const;
  Activations slots_of(const Model& model, const Norm& norm, int tile) const;
  Store expert_out(const Model& model, const Layer& layer) const;
  Status trace_router(const ModelConfig& config, int layer, int rows, const RouterTrace& trace,
                      cudaStream_t stream);

  DeviceBuffer normed_f32_, router_logits_, expert_ids_, expert_weights_, slots_, slot_rows_, jobs_,
      job_count_, tiles_, hidden_, out_, arrived_;
  std::vector<TunedStep> measured_;
  std::map<int, const MoeKernelConfig*> chosen_;  // by rows
};

}  // namespace moesaic::cuda
