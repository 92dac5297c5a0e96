#include "backend/cuda/matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "backend/cuda/repack.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

bool is_transposed(const MatrixView& m) {
  return is_plain(m.format) && m.col_stride != row_bytes(m.format, 1);
}
int64_t units_of(int64_t rows) { return (rows + kUnit - 1) / kUnit; }
int64_t scale_bytes_of(const MatrixView& m) { return m.scales != nullptr ? m.rows * (m.cols / kBlock) : 0; }

}  // namespace

const char* kind_name(Kind kind) {
  constexpr const char* kNames[] = {"bf16", "f16", "q8_0", "mxfp8", "mxfp4"};
  return kNames[static_cast<int>(kind)];
}

int64_t Matrix::unit_bytes() const {
  constexpr int64_t kBytes[] = {2048, 2048, 1024, 1024, 512};
  return cols / kBlock * kBytes[static_cast<int>(kind)];
}
int64_t Matrix::unit_scale_bytes() const {
  constexpr int64_t kBytes[] = {0, 0, 64, 32, 32};
  return cols / kBlock * kBytes[static_cast<int>(kind)];
}

Kind kind_of(Format format, DenseFormat wanted) {
  if (format == Format::kMxfp4 || format == Format::kMxfp4Gguf) return Kind::kMxfp4;
  switch (wanted) {
    case DenseFormat::kBF16:
      return Kind::kBF16;
    case DenseFormat::kQ8_0:
      return Kind::kQ8_0;
    case DenseFormat::kMxfp8:
      return Kind::kMxfp8;
    case DenseFormat::kAsLoaded:
      break;
  }
  switch (format) {
    case Format::kF16:
      return Kind::kF16;
    case Format::kQ8_0:
      return Kind::kQ8_0;
    case Format::kMxfp8:
      return Kind::kMxfp8;
    default:
      return Kind::kBF16;
  }
}

Result<Uploader> Uploader::create(cudaStream_t stream) {
  Uploader u;
  u.stream_ = stream;
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(u.pinned_[i], PinnedBuffer::allocate(kPiece));
    RETURN_IF_ERROR(check(cudaEventCreateWithFlags(&u.free_[i], cudaEventDisableTiming), "event"));
  }
  ASSIGN_OR_RETURN(u.fault_, DeviceBuffer::allocate(sizeof(int), "a flag"));
  return u;
}

Status Uploader::copy(const std::byte* source, int64_t stride, int64_t bytes, int64_t rows,
                      std::byte* target) {
  const int64_t dense = stride == bytes ? std::max<int64_t>(1, kPiece / bytes) : kPiece / bytes;
  if (bytes > static_cast<int64_t>(kPiece)) return invalid("cuda: a row of {} bytes is not supported", bytes);
  for (int64_t first = 0; first < rows; first += dense) {
    const int64_t n = std::min(dense, rows - first);
    RETURN_IF_ERROR(check(cudaEventSynchronize(free_[next_]), "upload"));
    auto* staged = pinned_[next_].as<std::byte>();
    if (stride == bytes) {
      std::memcpy(staged, source + first * stride, n * bytes);
    } else {
      for (int64_t r = 0; r < n; ++r) std::memcpy(staged + r * bytes, source + (first + r) * stride, bytes);
    }
    RETURN_IF_ERROR(
        check(cudaMemcpyAsync(target + first * bytes, staged, n * bytes, cudaMemcpyHostToDevice, stream_),
              "upload"));
    RETURN_IF_ERROR(check(cudaEventRecord(free_[next_], stream_), "upload"));
    next_ ^= 1;
  }
  return {};
}

// Transposed plain tensors (unquantised experts) go through floats, row by row.
Status Uploader::stage(const MatrixView& m, std::byte* data, std::byte* scales) {
  if (is_transposed(m)) {
    const int64_t rows_at_once = std::max<int64_t>(1, static_cast<int64_t>(kPiece) / (m.cols * 4));
    std::vector<float> rows(rows_at_once * m.cols);
    for (int64_t first = 0; first < m.rows; first += rows_at_once) {
      const int64_t n = std::min(rows_at_once, m.rows - first);
      for (int64_t r = 0; r < n; ++r) read_row(m, first + r, std::span(rows).subspan(r * m.cols, m.cols));
      RETURN_IF_ERROR(copy(reinterpret_cast<std::byte*>(rows.data()), m.cols * 4, m.cols * 4, n,
                           data + first * m.cols * 4));
    }
    return {};
  }
  RETURN_IF_ERROR(copy(m.data, m.row_stride, row_bytes(m.format, m.cols), m.rows, data));
  if (scales != nullptr) return copy(m.scales, m.scale_stride, m.cols / kBlock, m.rows, scales);
  return {};
}

// sections: one, or gate and up for Rows::kPairs. Fills the units from `unit` on.
Status Uploader::repack(const std::vector<MatrixView>& sections, const Matrix& out, int64_t unit,
                        const Slabs* slabs) {
  const auto stored = [](const MatrixView& m) { return is_transposed(m) ? Format::kF32 : m.format; };
  const auto room = [&](const MatrixView& m) {
    return (m.rows * row_bytes(stored(m), m.cols) + scale_bytes_of(m) + 63) / 64 * 64;
  };
  int64_t bytes = 0, rows = 0;
  for (const MatrixView& m : sections) bytes += room(m), rows += m.rows;
  if (static_cast<int64_t>(raw_.bytes()) < bytes) {
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "upload"));
    raw_ = {};
    ASSIGN_OR_RETURN(raw_, DeviceBuffer::allocate(bytes, "staging"));
  }
  RepackParams p{.source = {},
                 .kind = out.kind,
                 .order = out.order,
                 .head_dim = out.head_dim,
                 .rows = rows,
                 .units = units_of(rows),
                 .blocks = out.cols / kBlock,
                 .data = out.data.as<uint8_t>() + unit * out.unit_bytes(),
                 .scales = out.scales.as<uint8_t>() + unit * out.unit_scale_bytes(),
                 .fault = fault_.as<int>()};
  auto* at = raw_.as<std::byte>();
  for (size_t i = 0; i < sections.size(); ++i) {
    const MatrixView& m = sections[i];
    const int64_t row = row_bytes(stored(m), m.cols);
    std::byte* scales = scale_bytes_of(m) != 0 ? at + m.rows * row : nullptr;
    RETURN_IF_ERROR(stage(m, at, scales));
    p.source[i] = {stored(m),
                   m.rows,
                   row,
                   m.cols / kBlock,
                   reinterpret_cast<uint8_t*>(at),
                   reinterpret_cast<uint8_t*>(scales)};
    at += room(m);
  }
  RETURN_IF_ERROR(cuda::repack(p, stream_));
  if (slabs == nullptr) return {};
  const int64_t expert = unit / out.units;
  SlabParams s{.source = {p.source[0], p.source[1]},
               .down = slabs->down,
               .bias = {slabs->bias[0], slabs->bias[1]},
               .out = slabs->data + expert * slabs->expert_bytes};
  for (size_t i = 0; i < sections.size(); ++i) s.bias[i] += expert * sections[i].rows;
  return repack_slabs(s, stream_);
}

Status Uploader::allocate(Matrix& out, const std::string& name) {
  ASSIGN_OR_RETURN(out.data, DeviceBuffer::allocate(out.experts * out.units * out.unit_bytes(), name));
  ASSIGN_OR_RETURN(out.scales,
                   DeviceBuffer::allocate(out.experts * out.units * out.unit_scale_bytes(), name));
  return check(cudaMemsetAsync(fault_.as<int>(), 0, sizeof(int), stream_), "load");
}

Status Uploader::finish(const std::string& name) {
  int fault = 0;
  RETURN_IF_ERROR(check(
      cudaMemcpyAsync(&fault, fault_.as<int>(), sizeof fault, cudaMemcpyDeviceToHost, stream_), "load"));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), name));
  if (fault == kNanScale) return invalid("{}: a block scale is NaN; the checkpoint is damaged", name);
  if (fault != kNone) return invalid("{}: a weight is NaN or infinite; the checkpoint is damaged", name);
  return {};
}

Result<Matrix> Uploader::matrix(const std::vector<MatrixView>& sections, Kind kind, Rows order, int head_dim,
                                const std::string& name) {
  Matrix out{.kind = kind, .order = order, .cols = sections[0].cols, .head_dim = head_dim};
  for (const MatrixView& m : sections) out.rows += m.rows, out.units += units_of(m.rows);
  RETURN_IF_ERROR(allocate(out, name));
  int64_t unit = 0;
  for (const MatrixView& m : sections) {
    RETURN_IF_ERROR(repack({m}, out, unit));
    unit += units_of(m.rows);
  }
  RETURN_IF_ERROR(finish(name));
  return out;
}

Result<Matrix> Uploader::experts(const std::vector<ExpertsView>& sections, Kind kind, Rows order,
                                 const std::string& name, const Slabs* slabs) {
  Matrix out{.kind = kind, .order = order, .cols = sections[0].first.cols, .experts = sections[0].count};
  for (const ExpertsView& s : sections) out.rows += s.first.rows;
  out.units = units_of(out.rows);
  RETURN_IF_ERROR(allocate(out, name));
  for (int64_t e = 0; e < out.experts; ++e) {
    std::vector<MatrixView> views;
    for (const ExpertsView& s : sections) views.push_back(s.at(e));
    RETURN_IF_ERROR(repack(views, out, e * out.units, slabs));
  }
  RETURN_IF_ERROR(finish(name));
  return out;
}

Result<Table> Uploader::table(const MatrixView& m, const std::string& name) {
  if (is_transposed(m)) return invalid("{}: a transposed table is not supported", name);
  const int64_t row = row_bytes(m.format, m.cols), data_bytes = m.rows * row;
  Table out{.format = m.format, .cols = m.cols, .row_bytes = row, .scale_offset = data_bytes};
  ASSIGN_OR_RETURN(out.data, DeviceBuffer::allocate(data_bytes + scale_bytes_of(m), name));
  auto* data = out.data.as<std::byte>();
  RETURN_IF_ERROR(stage(m, data, scale_bytes_of(m) != 0 ? data + data_bytes : nullptr));
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), name));
  return out;
}

Result<DeviceBuffer> Uploader::vector(const std::vector<MatrixView>& parts, const std::string& name,
                                      float* largest) {
  std::vector<float> values;
  for (const MatrixView& m : parts) {
    const size_t first = values.size();
    values.resize(first + m.rows * m.cols);
    for (int64_t r = 0; r < m.rows; ++r)
      read_row(m, r, std::span(values).subspan(first + r * m.cols, m.cols));
  }
  float top = 0;
  for (const float v : values) {
    if (!std::isfinite(v)) return invalid("{}: a value is NaN or infinite; the checkpoint is damaged", name);
    top = std::max(top, std::fabs(v));
  }
  if (largest != nullptr) *largest = top;
  ASSIGN_OR_RETURN(DeviceBuffer out, DeviceBuffer::allocate(values.size() * sizeof(float), name));
  RETURN_IF_ERROR(
      check(cudaMemcpy(out.as<float>(), values.data(), out.bytes(), cudaMemcpyHostToDevice), name));
  return out;
}

}  // namespace moesaic::cuda
