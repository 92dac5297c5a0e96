#include "backend/cuda/ops/expert_stream.h"

#include <algorithm>
#include <chrono>

#include "backend/cuda/ops/expert_weights.h"
#include "base/error.h"
#include "base/seconds.h"

namespace moesaic::cuda {
namespace {

constexpr size_t kPieceBytes = 32u << 20;  // 0.6 ms at 50 GB/s
constexpr size_t kAligned = 256;

size_t aligned(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }
Status record(cudaEvent_t event, cudaStream_t stream) { return check(cudaEventRecord(event, stream), "moe"); }
Status wait(cudaStream_t stream, cudaEvent_t event) {
  return check(cudaStreamWaitEvent(stream, event, 0), "moe");
}

// Copies each expert's pairs that one node has to their place among all of the expert's.
Status copy_node(const ExpertPanels& m, size_t node, int64_t first, int64_t count, int64_t pair_bytes,
                 const std::byte* from, std::byte* to, cudaStream_t stream) {
  const int64_t begin = m.node_begins[node], share = m.node_begins[node + 1] - begin;
  if (share == 0) return {};
  const auto bytes = [&](int64_t pairs) { return static_cast<size_t>(pairs * pair_bytes); };
  const std::byte* const source = from + bytes(m.experts * begin + first * share);
  if (share == m.pairs)
    return check(cudaMemcpyAsync(to, source, bytes(count * share), cudaMemcpyHostToDevice, stream), "moe");
  return check(cudaMemcpy2DAsync(to + bytes(begin), bytes(m.pairs), source, bytes(share), bytes(share),
                                 static_cast<size_t>(count), cudaMemcpyHostToDevice, stream),
               "moe");
}

StreamPiece piece_of(const ExpertPanels& m) {
  return stream_piece(m.experts, static_cast<size_t>(m.pairs * m.pair_bytes),
                      static_cast<size_t>(m.pairs * m.pair_scale_bytes));
}

}  // namespace

StreamPiece stream_piece(int64_t experts, size_t data, size_t scales) {
  const int64_t fit = static_cast<int64_t>((kPieceBytes - 2 * kAligned) / (data + scales));
  const int64_t count = std::clamp<int64_t>(fit, 1, experts);
  return {count, aligned(static_cast<size_t>(count) * data) + aligned(static_cast<size_t>(count) * scales)};
}

double ExpertStream::layer_bytes() const {
  return static_cast<double>(layers_.front().gate_up.bytes() + layers_.front().down.bytes());
}

Status ExpertStream::open(const LoadedModel& model, HostExperts& experts, cudaStream_t stream) {
  close();
  model_ = &model, stream_ = stream;
  for (int i = 0; i < model.config.layers - model.host_from; ++i) {
    const std::optional<LayerPanels> panels = experts.panels(i);
    if (!panels) return error(StatusCode::kInternal, "moe: experts to be streamed are not MXFP4");
    layers_.push_back(*panels);
  }
  RETURN_IF_ERROR(make_streams());
  ASSIGN_OR_RETURN(faults_, DeviceBuffer::allocate(sizeof(int), "flags"));
  for (const LayerPanels& layer : layers_) {
    for (const ExpertPanels* m : {&layer.gate_up, &layer.down})
      lock(m->data, m->data_bytes()), lock(m->scales, m->scale_bytes());
  }
  return {};
}

// Repacking goes before what else the device has to do: the copies wait for it.
Status ExpertStream::make_streams() {
  int least = 0, greatest = 0;
  RETURN_IF_ERROR(check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream"));
  RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "stream"));
  RETURN_IF_ERROR(
      check(cudaStreamCreateWithPriority(&repacking_, cudaStreamNonBlocking, greatest), "stream"));
  std::vector<cudaEvent_t*> events = {&there_[0], &there_[1], &left_[0], &left_[1]};
  for (Arrival& a : arrivals_) events.push_back(&a.copied), events.push_back(&a.repacked);
  for (cudaEvent_t* event : events)
    RETURN_IF_ERROR(check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event"));
  return {};
}

void ExpertStream::lock(std::byte* data, size_t bytes) {
  if (cudaHostRegister(data, bytes, cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();
    all_locked_ = false;
    return;
  }
  locked_.push_back(data), locked_bytes_ += static_cast<double>(bytes);
}

void ExpertStream::close() {
  if (model_ == nullptr) return;
  if (!device_is_lost()) {
    for (const cudaStream_t stream : {copies_, repacking_}) {
      if (stream == nullptr) continue;
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    for (std::byte* data : locked_) cudaHostUnregister(data);
    for (const Arrival& a : arrivals_) {
      if (a.copied != nullptr) cudaEventDestroy(a.copied);
      if (a.repacked != nullptr) cudaEventDestroy(a.repacked);
    }
    for (const cudaEvent_t event : {there_[0], there_[1], left_[0], left_[1]}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  model_ = nullptr, stream_ = copies_ = repacking_ = nullptr;
  layers_.clear(), locked_.clear(), locked_bytes_ = 0, all_locked_ = true, next_ = 0;
  arrivals_ = {}, there_ = {}, left_ = {}, faults_ = {};
}

Status ExpertStream::begin() {
  for (int i = 0; i < model_->stream.count; ++i) RETURN_IF_ERROR(bring(i));
  return {};
}

Status ExpertStream::wait_for(int index) {
  return wait(stream_, there_[static_cast<size_t>(index % model_->stream.count)]);
}

Status ExpertStream::leave(int index) {
  const int count = model_->stream.count;
  RETURN_IF_ERROR(record(left_[static_cast<size_t>(index % count)], stream_));
  return index + count < std::ssize(layers_) ? bring(index + count) : Status();
}

Status ExpertStream::bring(int index) {
  const auto room = static_cast<size_t>(index % model_->stream.count);
  RETURN_IF_ERROR(wait(repacking_, left_[room]));
  RETURN_IF_ERROR(bring_matrix(index, false));
  RETURN_IF_ERROR(bring_matrix(index, true));
  return record(there_[room], repacking_);
}

Status ExpertStream::bring_matrix(int index, bool down) {
  const LayerPanels& layer = layers_[static_cast<size_t>(index)];
  const ExpertPanels& m = down ? layer.down : layer.gate_up;
  const int64_t step = piece_of(m).experts;
  for (int64_t first = 0; first < m.experts; first += step)
    RETURN_IF_ERROR(bring_piece({.index = index,
                                 .down = down,
                                 .first = first,
                                 .count = std::min(step, m.experts - first),
                                 .room = &model_->experts_at(model_->host_from + index),
                                 .slot = first}));
  return {};
}

Status ExpertStream::bring_piece(const Piece& piece) {
  const LayerPanels& layer = layers_[static_cast<size_t>(piece.index)];
  const ExpertPanels& m = piece.down ? layer.down : layer.gate_up;
  const Arrival& arrival = arrivals_[static_cast<size_t>(next_)];
  auto* const data =
      model_->stream.arrivals.as<std::byte>() + static_cast<size_t>(next_) * model_->stream.arrival_bytes;
  auto* const scales = data + aligned(static_cast<size_t>(piece.count * m.pairs * m.pair_bytes));
  next_ = (next_ + 1) % kArrivals;
  RETURN_IF_ERROR(wait(copies_, arrival.repacked));
  RETURN_IF_ERROR(copy_panels(m, piece.first, piece.count, data, scales));
  RETURN_IF_ERROR(record(arrival.copied, copies_));
  RETURN_IF_ERROR(wait(repacking_, arrival.copied));
  RETURN_IF_ERROR(
      repack_piece(piece, reinterpret_cast<const uint8_t*>(data), reinterpret_cast<const uint8_t*>(scales)));
  return record(arrival.repacked, repacking_);
}

Status ExpertStream::wait_before_bringing(cudaEvent_t event) { return wait(repacking_, event); }

Status ExpertStream::bring_expert(int index, int expert, const Layer& to, int slot, cudaEvent_t there) {
  Piece piece{.index = index, .first = expert, .count = 1, .room = &to, .slot = slot};
  RETURN_IF_ERROR(bring_piece(piece));
  piece.down = true;
  RETURN_IF_ERROR(bring_piece(piece));
  const Layer& from = model_->layers[static_cast<size_t>(model_->host_from + index)];
  RETURN_IF_ERROR(copy_bias(from.gate_bias, expert, to.gate_bias, slot));
  RETURN_IF_ERROR(copy_bias(from.up_bias, expert, to.up_bias, slot));
  RETURN_IF_ERROR(copy_bias(from.down_bias, expert, to.down_bias, slot));
  return record(there, repacking_);
}

Status ExpertStream::copy_bias(const DeviceBuffer& from, int expert, const DeviceBuffer& to, int slot) {
  const size_t bytes = from.bytes() / static_cast<size_t>(model_->config.experts);
  return check(cudaMemcpyAsync(to.as<std::byte>() + static_cast<size_t>(slot) * bytes,
                               from.as<std::byte>() + static_cast<size_t>(expert) * bytes, bytes,
                               cudaMemcpyDeviceToDevice, repacking_),
               "moe");
}

Status ExpertStream::copy_panels(const ExpertPanels& from, int64_t first, int64_t count, std::byte* data,
                                 std::byte* scales) {
  for (size_t node = 0; node + 1 < from.node_begins.size(); ++node) {
    RETURN_IF_ERROR(copy_node(from, node, first, count, from.pair_bytes, from.data, data, copies_));
    RETURN_IF_ERROR(copy_node(from, node, first, count, from.pair_scale_bytes, from.scales, scales, copies_));
  }
  return {};
}

Status ExpertStream::repack_piece(const Piece& piece, const uint8_t* data, const uint8_t* scales) {
  const bool down = piece.down;
  const Layer &layer = model_->layers[static_cast<size_t>(model_->host_from + piece.index)],
              &room = *piece.room;
  const LayerPanels& panels = layers_[static_cast<size_t>(piece.index)];
  const ExpertPanels& m = down ? panels.down : panels.gate_up;
  const Matrix& to = down ? room.down : room.gate_up;
  Raw raw{.format = Format::kMxfp4,
          .rows = down ? to.rows : to.rows / 2,
          .row_stride = m.pair_bytes,
          .scale_stride = m.pair_scale_bytes,
          .data = data,
          .scales = scales,
          .expert_stride = m.pairs * m.pair_bytes,
          .expert_scale_stride = m.pairs * m.pair_scale_bytes,
          .panels = down ? Panels::kBoth : Panels::kFirst};
  Raw up = raw;
  up.panels = Panels::kSecond;
  if (model_->slabs) {
    const slabs::SlabLayout& layout = model_->slab_layout;
    const size_t expert_bytes = down ? layout.fc2_bytes() : layout.fc1_bytes();
    const auto bias = [&](const DeviceBuffer& of) { return of.as<float>() + piece.first * raw.rows; };
    SlabParams p{.source = {raw, up},
                 .down = down,
                 .layout = layout,
                 .experts = piece.count,
                 .out = (down ? room.fc2_slabs : room.fc1_slabs).as<uint8_t>() +
                        static_cast<size_t>(piece.slot) * expert_bytes,
                 .expert_bytes = expert_bytes,
                 .fault = faults_.as<int>()};
    p.bias[0] = bias(down ? layer.down_bias : layer.gate_bias);
    if (!down) p.bias[1] = bias(layer.up_bias);
    return repack_weights(p, repacking_);
  }
  const int64_t tile = piece.slot * to.weight_tiles;
  RepackParams p = repacking_of(to, raw, up, faults_.as<int>());
  p.experts = piece.count;
  p.data += tile * to.weight_tile_bytes(), p.scales += tile * to.weight_tile_scale_bytes();
  return repack_weights(p, repacking_);
}

// The second time, when kernels are loaded and pages have been touched.
Result<double> ExpertStream::seconds_a_layer() {
  double seconds = 0;
  for (int pass = 0; pass < 2; ++pass) {
    RETURN_IF_ERROR(check(cudaStreamSynchronize(repacking_), "moe"));
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(begin());
    RETURN_IF_ERROR(check(cudaStreamSynchronize(repacking_), "moe"));
    seconds = seconds_since(start);
  }
  return seconds / model_->stream.count;
}

}  // namespace moesaic::cuda
