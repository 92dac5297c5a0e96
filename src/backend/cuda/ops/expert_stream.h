// Experts of layers that are the host's, brought to the device for a step of many rows: the device's ordinary
// kernels compute, and the CPU does not.
//
//   copies     arrival 0 <- experts 0..2 | arrival 1 <- 3..5 | ..        page-locked panels, PCIe
//   repacking              layer a <- arrival 0 | layer a <- arrival 1 | ..    panels to the kernels' order
//   the step   .. attention of layer i | experts of layer i, from a | attention of i + 1 | ..
//
// Each line is a stream. There is room for two layers: while the step computes with one, the other one comes.
// Bits are those of a model whose experts are all on the device.
//
// Ordering A piece is copied behind the repacking of what was in its place; repacked behind its copy and
// behind
//          the kernels that computed with the layer that was in the room; and computed with behind its
//          repacking. All of them are events: the host waits for nothing.
// Bytes    a layer's packed experts over PCIe; on the device twice that is written and as much read.
// Floor    those bytes / PCIe's rate, a layer.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "backend/cuda/layout/model.h"
#include "backend/host_experts.h"

namespace moesaic::cuda {

// A piece that comes at once: so many experts of a matrix, in so many bytes. data, scales: bytes of an
// expert.
struct StreamPiece {
  int64_t experts = 0;
  size_t bytes = 0;
};
StreamPiece stream_piece(int64_t experts, size_t data, size_t scales);

class ExpertStream {
 public:
  ExpertStream() = default;
  ~ExpertStream() { close(); }
  ExpertStream(const ExpertStream&) = delete;
  ExpertStream& operator=(const ExpertStream&) = delete;

  // model: has room (LoadedModel::stream). experts: of its last layers, in order; both stay until close().
  // Page-locks the experts' memory. Where the system allows no more of that, copies of the rest are slower.
  Status open(const LoadedModel& model, HostExperts& experts, cudaStream_t stream);
  // Nothing of a step may be in flight.
  void close();

  // A step that streams: begin(), then for each of the layers, in order, wait_for() before the kernels that
  // compute with LoadedModel::experts_at(), and leave() behind them. No step is captured that does so.
  Status begin();
  Status wait_for(int index);
  Status leave(int index);
  // One expert of a layer to a place among others (HotSlots), behind what wait_before_bringing() had; records
  // `there` when it is to be used. Its biases come from the layer's own.
  Status wait_before_bringing(cudaEvent_t event);
  Status bring_expert(int index, int expert, const Layer& to, int slot, cudaEvent_t there);
  // The seconds that a layer takes to come where nothing else goes on.
  Result<double> seconds_a_layer();

  double locked_bytes() const { return locked_bytes_; }
  bool all_locked() const { return all_locked_; }
  double layer_bytes() const;

 private:
  struct Arrival {
    cudaEvent_t copied = nullptr, repacked = nullptr;
  };

  Status make_streams();
  void lock(std::byte* data, size_t bytes);
  Status bring(int index);
  Status bring_matrix(int index, bool down);
  Status copy_panels(const ExpertPanels& from, int64_t first, int64_t count, std::byte* data,
                     std::byte* scales);
  // Experts [first, first + count) of a matrix, to those from `slot` on of a room.
  struct Piece {
    int index = 0;
    bool down = false;
    int64_t first = 0, count = 0;
    const Layer* room = nullptr;
    int64_t slot = 0;
  };
  Status bring_piece(const Piece& piece);
  Status repack_piece(const Piece& piece, const uint8_t* data, const uint8_t* scales);
  Status copy_bias(const DeviceBuffer& from, int expert, const DeviceBuffer& to, int slot);

  const LoadedModel* model_ = nullptr;
  cudaStream_t stream_ = nullptr, copies_ = nullptr, repacking_ = nullptr;
  std::vector<LayerPanels> layers_;
  std::array<Arrival, kArrivals> arrivals_;
  int next_ = 0;                                       // arrival
  std::array<cudaEvent_t, 2> there_ = {}, left_ = {};  // for each room
  std::vector<std::byte*> locked_;
  double locked_bytes_ = 0;
  bool all_locked_ = true;  // the system refused none; what is not locked is copied all the same
  DeviceBuffer faults_;     // not read: the weights were found to be sound when they were packed
};

}  // namespace moesaic::cuda
