// The mixture-of-experts operator: norm, router, top-k, the work list, two grouped products, combine.
#pragma once

#include <map>

#include "backend/cuda/ops/route.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/weights/model.h"
#include "moe/plan.h"
#include "moe/tuning.h"

namespace moesaic::cuda {

// The ways in which the model's experts can run.
std::span<const MoeWay> ways_of(const Model& model);

class Moe {
 public:
  // Memory for the activations of at most max_rows rows.
  std::vector<Wanted> buffers(const ModelConfig& config, int max_rows);

  // The way to do so many rows: the quickest by moe/plan.h, or what was measured to be. By name: an error
  // where there is none of that name for so many rows.
  const MoeWay& way_for(const Model& model, int rows);
  static Result<const MoeWay*> find_way(const Model& model, int rows, std::string_view name);
  void prefer(std::vector<TunedStep> measured);

  // x += experts(norm(x)) of one layer; what is returned is not added yet. trace: see BackendOptions.
  Result<DeferredResidual> run(const Model& model, int layer, const Norm& norm, const MoeWay& way,
                               const Target& target, const RouterTrace& trace, cudaStream_t stream);
  // The same in two parts: the router's logits [rows, experts] of normed rows, and what comes after them.
  Status score_rows(const Model& model, int layer, const Norm& norm, const Target& target, float* logits,
                    cudaStream_t stream);
  Result<DeferredResidual> run_from_logits(const Model& model, int layer, const Norm& norm, const MoeWay& way,
                                           const float* logits, cudaStream_t stream);

 private:
  // What comes once there are logits, and once there are jobs as well, where the products do not make them.
  Result<DeferredResidual> route_and_run(const Model& model, int layer, const Norm& norm, const MoeWay& way,
                                         const Route& routing, cudaStream_t stream);
  Result<DeferredResidual> run_experts(const Model& model, int layer, const Norm& norm, const MoeWay& way,
                                       const Route& routing, cudaStream_t stream);
  Status run_products(const Model& model, const Layer& layer, const Norm& norm, const MoeWay& way,
                      const Route& routing, cudaStream_t stream);
  Status run_slabs(const Model& model, int layer, const Norm& norm, const float* logits, cudaStream_t stream);
  Status run_split(const Model& model, const Layer& layer, const Norm& norm, const Route& routing,
                   cudaStream_t stream);
  Status run_wide(const Model& model, const Layer& layer, const Norm& norm, int tile, cudaStream_t stream);
  Status run_jobs(const Model& model, const Layer& layer, const Norm& norm, int tile, cudaStream_t stream);
  Status run_w4a8(const Model& model, const Layer& layer, const Norm& norm, const MoeWay& way,
                  cudaStream_t stream);
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
  std::map<int, const MoeWay*> chosen_;  // by rows
};

}  // namespace moesaic::cuda
