// Weights are brought to the device: rows are read by several threads into page-locked pieces, a piece
// travels while the next one is read, and the kernels of repack.h work on the piece before it.
//
// The same calls in the same order only count what they would allocate where the uploader was made to: what a
// model takes is known before anything is loaded, from the code that loads it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/kernels/common/repack.h"
#include "backend/cuda/layout/matrix.h"
#include "base/thread_pool.h"

namespace moesaic::cuda {

class Uploader {
 public:
  Uploader() = default;
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Loads from now on; without open() everything is only counted. pools: ModelWeights::pools, copied whole.
  Status open(cudaStream_t stream, const std::vector<std::span<const std::byte>>& pools);
  bool counts_only() const { return stream_ == nullptr; }

  // sections: stacked matrices of one format (Q, K and V, or one); part: the line of memory() that it counts
  // for, name: of the tensor, for errors.
  Result<Matrix> matrix(const std::vector<MatrixView>& sections, Kind kind, RowOrder order, int head_dim,
                        const char* part, const std::string& name);
  // gate and up of one dense MLP, RowOrder::kPairs.
  Result<Matrix> pairs(const MatrixView& gate, const MatrixView& up, Kind kind, const char* part,
                       const std::string& name);
  // sections: gate and up (RowOrder::kPairs), or one.
  // slabs, if wanted: the experts go there, and not into the matrix. Sources, experts and fault are not read.
  Result<Matrix> experts(const std::vector<ExpertsView>& sections, Kind kind, RowOrder order,
                         const char* part, const std::string& name, const SlabParams* slabs = nullptr);
  // The place for experts, as experts() would fill it; slabs: they do not go into the matrix.
  Result<Matrix> room(const std::vector<ExpertsView>& sections, Kind kind, RowOrder order, const char* part,
                      const std::string& name, bool slabs);
  Result<Table> table(const MatrixView& m, const char* part, const std::string& name);
  // Floats one behind the other, checked for NaN and infinity; *largest: the largest magnitude.
  Result<DeviceBuffer> vector(const std::vector<MatrixView>& parts, const std::string& name,
                              float* largest = nullptr);
  // Memory without a tensor: `bytes` of them, all of the value `fill`.
  Result<DeviceBuffer> buffer(size_t bytes, uint8_t fill, const char* part, const std::string& name);
  Status put(const DeviceBuffer& to, size_t offset, const void* from, size_t bytes, const std::string& name);

  // Waits for all that was begun. One line that names the first tensor with a NaN scale or a non-finite
  // value.
  Status finish();
  // Bytes that were allocated, or would have been.
  const std::vector<MemoryPart>& parts() const { return parts_; }

 private:
  // A piece in flight: copied says that `pinned` may be written again, repacked that `device` may.
  struct Stage {
    PinnedBuffer pinned;
    DeviceBuffer device;
    size_t bytes = 0;
    cudaEvent_t copied = nullptr, repacked = nullptr;
  };
  struct Copy;

  Result<DeviceBuffer> allocate(size_t bytes, const char* part, const std::string& name);
  Status allocate(Matrix& out, const char* part, const std::string& name);
  Status note(const std::string& name);  // the tensor that a fault would be found in
  Result<Stage*> next_stage(size_t bytes);
  Status send(Stage& stage, std::byte* target, size_t bytes);
  void read(const std::vector<Copy>& copies);
  const std::byte* resident(const std::byte* host) const;
  Result<Raw> place(const ExpertsView& e, Stage* stage, int64_t& at, std::vector<Copy>& copies) const;
  Status repack(const std::vector<ExpertsView>& sections, const Matrix& out, int64_t expert,
                int64_t weight_tile, const SlabParams* slabs);
  Status copy_rows(const std::byte* source, int64_t stride, int64_t bytes, int64_t rows, std::byte* target);

  static constexpr size_t kPiece = 32u << 20;
  cudaStream_t stream_ = nullptr, copy_stream_ = nullptr;
  std::unique_ptr<ThreadPool> readers_;
  std::array<Stage, 4> stages_;
  int next_ = 0;
  std::vector<std::span<const std::byte>> pools_;
  std::vector<DeviceBuffer> pool_copies_;
  DeviceBuffer faults_;             // [names_] a RepackFault each
  std::vector<std::string> names_;  // names of the tensors that were repacked
  std::vector<MemoryPart> parts_;
};

}  // namespace moesaic::cuda
