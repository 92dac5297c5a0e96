// The class behind prepare_moe(): moe_operator.cpp prepares the weights, moe_operator_run.cpp runs.
#pragma once

#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/cuda/operators/row_type.h"
#include "backend/cuda/ops/expert_weights.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/workspaces.h"
#include "backend/moe_operator.h"

namespace moesaic::cuda {

// The pieces of a caller's workspace, for so many rows.
struct Workspace {
  MoeScratch scratch;
  void* x = nullptr;         // [rows, hidden] as the kernels take it
  float* factors = nullptr;  // [rows]
  float* logits = nullptr;   // [rows, routed or own experts]
  float* sums = nullptr;     // [up to kSlabRows, hidden]
  uint4* empty = nullptr;    // ExpertsDecode::h
};

class CudaMoeOperator final : public MoeOperator {
 public:
  explicit CudaMoeOperator(const MoeOperatorOptions& options) : options_(options) {
    if (options_.routed_experts == 0) options_.routed_experts = options.first_expert + options.experts;
    if (options_.limit == 0) options_.limit = std::numeric_limits<float>::infinity();
  }
  Status prepare(const MoeOperatorMatrix& gate_up, const MoeOperatorMatrix& down, cudaStream_t stream);

  const MoeOperatorOptions& options() const override { return options_; }
  size_t workspace_bytes(int64_t tokens) const override;
  size_t bytes() const override;
  std::string plan(int64_t tokens) const override;
  Status run(const MoeOperatorCall& call) const override;

 private:
  Status choose_layout();
  Status allocate_weights();
  Status load(const MoeOperatorMatrix& gate_up, const MoeOperatorMatrix& down, cudaStream_t stream);
  Status load_slabs(const Raw& gate, const Raw& up, const Raw& down, cudaStream_t stream);
  Status load_matrix(const Matrix& to, const Raw& first, const Raw& second, int fault, cudaStream_t stream);
  Status check_faults(cudaStream_t stream) const;
  Status warm_up(int* fault, cudaStream_t stream) const;

  LayerExperts experts() const;
  bool routes_all() const {
    return options_.first_expert == 0 && options_.experts == options_.routed_experts;
  }
  bool usable(const MoeKernelConfig& config, int rows) const;
  const MoeKernelConfig* config_for(int rows) const;
  size_t deal(void* memory, int rows, Workspace& workspace) const;
  Status run_rows(const MoeOperatorCall& call, const Workspace& w, int rows, const MoeKernelConfig& config,
                  cudaStream_t stream) const;
  // Writes each row's experts and their weights into the workspace.
  Status choose(const float* logits, int rows, const Workspace& w, cudaStream_t stream) const;

  std::shared_ptr<Workspaces> workspaces_ = Workspaces::shared();
  mutable std::mutex mutex_;                                        // guards chosen_
  mutable std::unordered_map<int, const MoeKernelConfig*> chosen_;  // by rows
  MoeOperatorOptions options_;
  bool slabs_ = false, wgmma_ = false, w4a8_ = false, emulated_ = false;
  slabs::SlabLayout layout_;
  Matrix gate_up_, down_;
  DeviceBuffer fc1_slabs_, fc2_slabs_, gate_bias_, up_bias_, down_bias_, ones_, faults_;
};

}  // namespace moesaic::cuda
