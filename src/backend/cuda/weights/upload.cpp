#include "backend/cuda/weights/upload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "backend/cuda/ops/expert_weights.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr size_t kMostTensors = 1 << 16;
constexpr int kMostReaders = 16;         // a page cache gives no more to more
constexpr int64_t kReadBytes = 1 << 19;  // bytes that a thread takes at a time
constexpr int64_t kChunkRows = 128;      // matrices travel in multiples: whole weight tiles and whole heads

bool is_transposed(const MatrixView& m) {
  return is_plain(m.format) && m.col_stride != row_bytes(m.format, 1);
}
// Transposed tensors (unquantised experts) travel as floats.
Format sent_as(const MatrixView& m) { return is_transposed(m) ? Format::kF32 : m.format; }
int64_t sent_row(const MatrixView& m) { return row_bytes(sent_as(m), m.cols); }
int64_t scale_row(const MatrixView& m) { return m.scales != nullptr ? m.cols / kBlock : 0; }
int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t sent_bytes(const ExpertsView& e) {
  return aligned(e.count * e.first.rows * sent_row(e.first)) +
         aligned(e.count * e.first.rows * scale_row(e.first));
}
int64_t sent_bytes(const std::vector<ExpertsView>& sections) {
  int64_t bytes = 0;
  for (const ExpertsView& e : sections) bytes += sent_bytes(e);
  return bytes;
}

}  // namespace

// Rows to page-locked memory, one behind the other.
struct Uploader::Copy {
  const std::byte* from;
  int64_t stride, bytes, rows;  // bytes of a row
  std::byte* to;
  std::optional<MatrixView> floats = {};  // not bytes but this view's values

  bool dense() const { return stride == bytes && !floats; }
  // Bytes of the target that a thread takes at a time: whole rows unless they are dense.
  int64_t step() const { return dense() ? kReadBytes : std::max<int64_t>(1, kReadBytes / bytes) * bytes; }
  int64_t items() const { return (rows * bytes + step() - 1) / step(); }
  void run(int64_t item) const;
};

void Uploader::Copy::run(int64_t item) const {
  const int64_t first = item * step(), last = std::min(first + step(), rows * bytes);
  if (dense()) {
    std::memcpy(to + first, from + first, static_cast<size_t>(last - first));
    return;
  }
  for (int64_t at = first; at < last; at += bytes) {
    if (floats)
      read_row(*floats, at / bytes, {reinterpret_cast<float*>(to + at), static_cast<size_t>(floats->cols)});
    else
      std::memcpy(to + at, from + at / bytes * stride, static_cast<size_t>(bytes));
  }
}

Uploader::~Uploader() {
  if (counts_only()) return;
  cudaStreamSynchronize(copy_stream_);
  cudaStreamSynchronize(stream_);
  for (Stage& s : stages_) {
    if (s.copied != nullptr) cudaEventDestroy(s.copied);
    if (s.repacked != nullptr) cudaEventDestroy(s.repacked);
  }
  if (copy_stream_ != nullptr) cudaStreamDestroy(copy_stream_);
}

Status Uploader::open(cudaStream_t stream, const std::vector<std::span<const std::byte>>& pools) {
  stream_ = stream;
  RETURN_IF_ERROR(check(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking), "stream"));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  readers_ = std::make_unique<ThreadPool>(std::clamp(cores, 1, kMostReaders));
  for (Stage& s : stages_) {
    RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&s.copied, cudaEventDisableTiming), "event"));
    RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&s.repacked, cudaEventDisableTiming), "event"));
  }
  ASSIGN_OR_RETURN(faults_, DeviceBuffer::allocate(kMostTensors * sizeof(int), "flags"));
  pools_ = pools;
  for (const auto& pool : pools_) {
    ASSIGN_OR_RETURN(DeviceBuffer copy, DeviceBuffer::allocate(pool.size(), "random weights"));
    const auto bytes = static_cast<int64_t>(pool.size());
    RETURN_IF_ERROR(copy_rows(pool.data(), bytes, bytes, 1, copy.as<std::byte>()));
    pool_copies_.push_back(std::move(copy));
  }
  // The next work reads the pools on the other stream.
  return check(cudaStreamSynchronize(copy_stream_), "random weights");
}

// Where a weight's byte stands on the device already: it is there itself, or in a pool. Else null.
const std::byte* Uploader::resident(const std::byte* host) const {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) == cudaSuccess && attributes.type == cudaMemoryTypeDevice)
    return host;
  cudaGetLastError();
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (host >= pools_[i].data() && host < pools_[i].data() + pools_[i].size())
      return pool_copies_[i].as<std::byte>() + (host - pools_[i].data());
  }
  return nullptr;
}

Result<DeviceBuffer> Uploader::allocate(size_t bytes, const char* part, const std::string& name) {
  const auto same = [&](const MemoryPart& p) { return p.name == part; };
  auto line = std::find_if(parts_.begin(), parts_.end(), same);
  if (line == parts_.end()) line = parts_.insert(parts_.end(), {.name = part});
  line->bytes += page_bytes(bytes);
  return counts_only() ? Result<DeviceBuffer>(DeviceBuffer()) : DeviceBuffer::allocate(bytes, name);
}

Status Uploader::allocate(Matrix& out, const char* part, const std::string& name) {
  ASSIGN_OR_RETURN(out.data, allocate(out.experts * out.weight_tiles * out.weight_tile_bytes(), part, name));
  ASSIGN_OR_RETURN(out.scales,
                   allocate(out.experts * out.weight_tiles * out.weight_tile_scale_bytes(), part, name));
  ASSIGN_OR_RETURN(out.tops,
                   allocate(out.experts * out.weight_tiles * out.weight_tile_top_bytes(), part, name));
  return note(name);
}

Status Uploader::note(const std::string& name) {
  if (names_.size() >= kMostTensors) return invalid("cuda: more than {} tensors", kMostTensors);
  names_.push_back(name);
  return {};
}

// The stage whose turn it is, once the piece before in its page-locked memory has left.
Result<Uploader::Stage*> Uploader::next_stage(size_t bytes) {
  Stage& s = stages_[next_];
  next_ = (next_ + 1) % static_cast<int>(stages_.size());
  RETURN_IF_ERROR(check(cudaEventSynchronize(s.copied), "upload"));
  if (s.bytes >= bytes) return &s;
  RETURN_IF_ERROR(check(cudaEventSynchronize(s.repacked), "upload"));
  s.bytes = 0, s.pinned = {}, s.device = {};
  ASSIGN_OR_RETURN(s.pinned, PinnedBuffer::allocate(std::max(bytes, kPiece)));
  ASSIGN_OR_RETURN(s.device, DeviceBuffer::allocate(std::max(bytes, kPiece), "loading"));
  s.bytes = std::max(bytes, kPiece);
  return &s;
}

Status Uploader::send(Stage& s, std::byte* target, size_t bytes) {
  RETURN_IF_ERROR(check(
      cudaMemcpyAsync(target, s.pinned.as<void>(), bytes, cudaMemcpyHostToDevice, copy_stream_), "upload"));
  return check(cudaEventRecord(s.copied, copy_stream_), "upload");
}

void Uploader::read(const std::vector<Copy>& copies) {
  int64_t items = 0;
  for (const Copy& c : copies) items += c.items();
  readers_->for_each(items, [&](int64_t item, int) {
    for (const Copy& c : copies) {
      if (item < c.items()) return c.run(item);
      item -= c.items();
    }
  });
}

Status Uploader::copy_rows(const std::byte* source, int64_t stride, int64_t bytes, int64_t rows,
                           std::byte* target) {
  const bool dense = stride == bytes;
  const int64_t total = rows * bytes, piece = static_cast<int64_t>(kPiece);
  const int64_t step = dense ? piece : std::max<int64_t>(1, piece / bytes) * bytes;
  for (int64_t at = 0; at < total; at += step) {
    const int64_t n = std::min(step, total - at);
    ASSIGN_OR_RETURN(Stage* const stage, next_stage(static_cast<size_t>(n)));
    auto* to = stage->pinned.as<std::byte>();
    read({dense ? Copy{source + at, n, n, 1, to}
                : Copy{source + at / bytes * stride, stride, bytes, n / bytes, to}});
    RETURN_IF_ERROR(send(*stage, target + at, static_cast<size_t>(n)));
  }
  return {};
}

// One section as the kernels will find it: where it lies already, or at `at` of the stage.
Result<Raw> Uploader::place(const ExpertsView& e, Stage* stage, int64_t& at,
                            std::vector<Copy>& copies) const {
  const MatrixView& m = e.first;
  if (stage == nullptr)
    return Raw{.format = m.format,
               .rows = m.rows,
               .row_stride = m.row_stride,
               .scale_stride = m.scale_stride,
               .data = reinterpret_cast<const uint8_t*>(resident(m.data)),
               .scales = m.scales != nullptr ? reinterpret_cast<const uint8_t*>(resident(m.scales)) : nullptr,
               .expert_stride = e.data_stride,
               .expert_scale_stride = e.scale_stride};
  const int64_t row = sent_row(m), scales = scale_row(m), data_at = at;
  auto* to = stage->pinned.as<std::byte>();
  for (int64_t i = 0; i < e.count; ++i, at += m.rows * row)
    copies.push_back({m.data + i * e.data_stride, m.row_stride, row, m.rows, to + at,
                      is_transposed(m) ? std::optional(e.at(i)) : std::nullopt});
  at = aligned(at);
  const int64_t scales_at = at;
  for (int64_t i = 0; scales != 0 && i < e.count; ++i, at += m.rows * scales)
    copies.push_back({m.scales + i * e.scale_stride, m.scale_stride, scales, m.rows, to + at});
  at = aligned(at);
  return Raw{.format = sent_as(m),
             .rows = m.rows,
             .row_stride = row,
             .scale_stride = scales,
             .data = stage->device.as<uint8_t>() + data_at,
             .scales = scales != 0 ? stage->device.as<uint8_t>() + scales_at : nullptr,
             .expert_stride = m.rows * row,
             .expert_scale_stride = m.rows * scales};
}

// sections: one, or gate and up for RowOrder::kPairs, of the experts from `expert` on. Fills the weight tiles
// from `weight_tile` on.
Status Uploader::repack(const std::vector<ExpertsView>& sections, const Matrix& out, int64_t expert,
                        int64_t weight_tile, const SlabParams* slabs) {
  const bool here = resident(sections[0].first.data) != nullptr;
  Stage* stage = nullptr;
  if (!here) {
    ASSIGN_OR_RETURN(stage, next_stage(static_cast<size_t>(sent_bytes(sections))));
  }
  int64_t rows = 0, at = 0;
  for (const ExpertsView& s : sections) rows += s.first.rows;
  const int64_t weight_tiles = weight_tiles_of(rows), first = expert * out.weight_tiles + weight_tile;
  RepackParams p{.kind = out.kind,
                 .order = out.order,
                 .head_dim = out.head_dim,
                 .rows = rows,
                 .weight_tiles = weight_tiles,
                 .blocks = out.cols / kBlock,
                 .experts = sections[0].count,
                 .data = out.data.as<uint8_t>() + first * out.weight_tile_bytes(),
                 .scales = out.scales.as<uint8_t>() + first * out.weight_tile_scale_bytes(),
                 .tops = out.tops.as<uint8_t>() + first * out.weight_tile_top_bytes(),
                 .fault = faults_.as<int>() + names_.size() - 1};
  std::vector<Copy> copies;
  for (size_t i = 0; i < sections.size(); ++i) {
    ASSIGN_OR_RETURN(p.source[i], place(sections[i], stage, at, copies));
  }
  if (stage != nullptr) {
    read(copies);
    RETURN_IF_ERROR(check(cudaStreamWaitEvent(copy_stream_, stage->repacked), "upload"));
    RETURN_IF_ERROR(send(*stage, stage->device.as<std::byte>(), static_cast<size_t>(at)));
    RETURN_IF_ERROR(check(cudaStreamWaitEvent(stream_, stage->copied), "upload"));
  }
  if (slabs == nullptr) {
    RETURN_IF_ERROR(repack_weights(p, stream_));
  } else {
    SlabParams s = *slabs;
    std::copy_n(p.source, 2, s.source);
    s.experts = p.experts, s.fault = p.fault, s.out += expert * s.expert_bytes;
    for (size_t i = 0; i < sections.size(); ++i) s.bias[i] += expert * sections[i].first.rows;
    RETURN_IF_ERROR(repack_weights(s, stream_));
  }
  return stage != nullptr ? check(cudaEventRecord(stage->repacked, stream_), "upload") : Status();
}

Result<Matrix> Uploader::matrix(const std::vector<MatrixView>& sections, Kind kind, RowOrder order,
                                int head_dim, const char* part, const std::string& name) {
  Matrix out{.kind = kind, .order = order, .cols = sections[0].cols, .head_dim = head_dim};
  for (const MatrixView& m : sections) out.rows += m.rows, out.weight_tiles += weight_tiles_of(m.rows);
  RETURN_IF_ERROR(allocate(out, part, name));
  if (counts_only()) return out;
  int64_t weight_tile = 0;
  for (const MatrixView& m : sections) {
    const int64_t fit = static_cast<int64_t>(kPiece) / (sent_row(m) + scale_row(m)) / kChunkRows * kChunkRows;
    const int64_t step = resident(m.data) != nullptr ? m.rows : std::max(kChunkRows, fit);
    for (int64_t row = 0; row < m.rows; row += step) {
      const MatrixView chunk = slice_rows(m, row, std::min(step, m.rows - row));
      RETURN_IF_ERROR(
          repack({{.first = chunk, .count = 1}}, out, 0, weight_tile + row / kWeightTileRows, nullptr));
    }
    weight_tile += weight_tiles_of(m.rows);
  }
  return out;
}

Result<Matrix> Uploader::pairs(const MatrixView& gate, const MatrixView& up, Kind kind, const char* part,
                               const std::string& name) {
  Matrix out{.kind = kind, .order = RowOrder::kPairs, .rows = gate.rows + up.rows, .cols = gate.cols};
  out.weight_tiles = weight_tiles_of(out.rows);
  RETURN_IF_ERROR(allocate(out, part, name));
  if (counts_only()) return out;
  const int64_t row_of_both = 2 * (sent_row(gate) + scale_row(gate));
  const int64_t fit = static_cast<int64_t>(kPiece) / row_of_both / kChunkRows * kChunkRows;
  const int64_t step = resident(gate.data) != nullptr ? gate.rows : std::max(kChunkRows, fit);
  for (int64_t row = 0; row < gate.rows; row += step) {
    const auto part_of = [&](const MatrixView& m) {
      return ExpertsView{.first = slice_rows(m, row, std::min(step, m.rows - row)), .count = 1};
    };
    RETURN_IF_ERROR(repack({part_of(gate), part_of(up)}, out, 0, 2 * row / kWeightTileRows, nullptr));
  }
  return out;
}

Result<Matrix> Uploader::room(const std::vector<ExpertsView>& sections, Kind kind, RowOrder order,
                              const char* part, const std::string& name, bool slabs) {
  Matrix out{.kind = kind, .order = order, .cols = sections[0].first.cols, .experts = sections[0].count};
  for (const ExpertsView& s : sections) out.rows += s.first.rows;
  out.weight_tiles = weight_tiles_of(out.rows);
  RETURN_IF_ERROR(slabs ? note(name) : allocate(out, part, name));
  return out;
}

Result<Matrix> Uploader::experts(const std::vector<ExpertsView>& sections, Kind kind, RowOrder order,
                                 const char* part, const std::string& name, const SlabParams* slabs) {
  ASSIGN_OR_RETURN(Matrix out, room(sections, kind, order, part, name, slabs != nullptr));
  if (counts_only()) return out;
  const int64_t each = std::max<int64_t>(1, sent_bytes(sections) / out.experts);
  const int64_t step = resident(sections[0].first.data) != nullptr
                           ? out.experts
                           : std::max<int64_t>(1, static_cast<int64_t>(kPiece) / each);
  for (int64_t e = 0; e < out.experts; e += step) {
    std::vector<ExpertsView> some = sections;
    for (ExpertsView& s : some) s.first = s.at(e), s.count = std::min(step, out.experts - e);
    RETURN_IF_ERROR(repack(some, out, e, 0, slabs));
  }
  return out;
}

Result<Table> Uploader::table(const MatrixView& m, const char* part, const std::string& name) {
  if (is_transposed(m)) return invalid("{}: a transposed table is not supported", name);
  const int64_t row = row_bytes(m.format, m.cols), scales = scale_row(m), data_bytes = m.rows * row;
  Table out{.format = m.format, .cols = m.cols, .row_bytes = row, .scale_offset = data_bytes};
  ASSIGN_OR_RETURN(out.data, allocate(data_bytes + m.rows * scales, part, name));
  if (counts_only()) return out;
  RETURN_IF_ERROR(check_finite(m, name, *readers_));
  auto* data = out.data.as<std::byte>();
  RETURN_IF_ERROR(copy_rows(m.data, m.row_stride, row, m.rows, data));
  if (scales != 0) RETURN_IF_ERROR(copy_rows(m.scales, m.scale_stride, scales, m.rows, data + data_bytes));
  return out;
}

Result<DeviceBuffer> Uploader::vector(const std::vector<MatrixView>& parts, const std::string& name,
                                      float* largest) {
  int64_t count = 0;
  for (const MatrixView& m : parts) count += m.rows * m.cols;
  ASSIGN_OR_RETURN(DeviceBuffer out, allocate(count * sizeof(float), kVectorsPart, name));
  if (counts_only()) return out;
  std::vector<float> values(static_cast<size_t>(count));
  auto at = values.begin();
  for (const MatrixView& m : parts) {
    readers_->for_each(m.rows, [&](int64_t r, int) {
      read_row(m, r, {&*at + r * m.cols, static_cast<size_t>(m.cols)});
    });
    at += m.rows * m.cols;
  }
  float top = 0;
  for (const float v : values) {
    if (!std::isfinite(v)) return invalid("{}: a value is NaN or infinite; the checkpoint is damaged", name);
    top = std::max(top, std::fabs(v));
  }
  if (largest != nullptr) *largest = top;
  RETURN_IF_ERROR(put(out, 0, values.data(), out.bytes(), name));
  return out;
}

Result<DeviceBuffer> Uploader::buffer(size_t bytes, uint8_t fill, const char* part, const std::string& name) {
  ASSIGN_OR_RETURN(DeviceBuffer out, allocate(bytes, part, name));
  if (!counts_only() && fill != 0) {
    RETURN_IF_ERROR(check(cudaMemsetAsync(out.as<void>(), fill, bytes, stream_), name));
  }
  return out;
}

Status Uploader::put(const DeviceBuffer& to, size_t offset, const void* from, size_t bytes,
                     const std::string& name) {
  if (counts_only()) return {};
  return copy_to_device(to.as<std::byte>() + offset, from, bytes, name);
}

Status Uploader::finish() {
  if (counts_only()) return {};
  std::vector<int> faults(names_.size());
  RETURN_IF_ERROR(check(cudaStreamSynchronize(copy_stream_), "load"));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "load"));
  RETURN_IF_ERROR(
      check(cudaMemcpy(faults.data(), faults_.as<int>(), faults.size() * sizeof(int), cudaMemcpyDeviceToHost),
            "load"));
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == kNanScale)
      return invalid("{}: a block scale is NaN; the checkpoint is damaged", names_[i]);
    if (faults[i] == kTooLarge)
      return invalid("{}: a weight above {} is too large for q8_0 here; use --dense bf16", names_[i],
                     127 * kMostQ8Scale);
    if (faults[i] != kNone)
      return invalid("{}: a weight is NaN or infinite; the checkpoint is damaged", names_[i]);
  }
  return {};
}

}  // namespace moesaic::cuda
