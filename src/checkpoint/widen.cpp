#include "checkpoint/widen.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "checkpoint/ggml_blocks.h"
#include "core/format.h"

namespace moesaic {
namespace {

int64_t q8_bytes(const std::vector<int64_t>& shape) {
  return row_bytes(Format::kQ8_0, element_count(shape).value_or(0));
}

Status widen(RawTensor& t, const GgmlBlocks& from, ThreadPool& pool, TensorMap& out) {
  constexpr int64_t kChunk = 4096;  // blocks
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(q8_bytes(t.shape)));
  const int64_t blocks = std::ssize(t.data) / from.bytes, step = row_bytes(Format::kQ8_0, from.block);
  const auto* source = reinterpret_cast<const uint8_t*>(t.data.data());
  auto* target = buffer.as<uint8_t>();
  pool.for_each((blocks + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
    for (int64_t b = chunk * kChunk; b < std::min(blocks, (chunk + 1) * kChunk); ++b)
      from.to_q8_0(source + b * from.bytes, target + b * step);
  });
  t.file->drop(t.data);
  t.data = {buffer.as<>(), buffer.bytes()};
  t.dtype = "Q8_0", t.in_memory = true;
  out.buffers.push_back(std::make_shared<const Buffer>(std::move(buffer)));
  return {};
}

// A sparse file of any size takes no disk.
Status check_room(double bytes, std::string_view format, const std::string& file) {
  const double free = available_host_memory();
  if (bytes <= free) return {};
  return error(StatusCode::kOutOfMemory,
               "{}: its dense matrices take {:.1f} GB as {}, {:.1f} GB of memory are free", file, bytes / 1e9,
               format, free / 1e9);
}

using Qkv = std::array<MatrixView*, 3>;

// Nothing: they are of one format.
std::optional<Format> joint_format(const Qkv& qkv) {
  const auto format_of = [](const MatrixView* m) { return m->format; };
  if (std::ranges::count(qkv, qkv[0]->format, format_of) == std::ssize(qkv)) return std::nullopt;
  const auto fits = [](const MatrixView* m) { return info_of(m->format).fits_bf16; };
  return std::ranges::all_of(qkv, fits) ? Format::kBF16 : Format::kF32;
}

Status convert(MatrixView& m, Format to, ThreadPool& pool, std::vector<Buffer>& buffers) {
  constexpr int64_t kChunk = 64;  // rows
  const int64_t row = row_bytes(to, m.cols);
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(static_cast<size_t>(m.rows * row)));
  pool.for_each((m.rows + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
    std::vector<float> values(static_cast<size_t>(m.cols));
    for (int64_t r = chunk * kChunk; r < std::min(m.rows, (chunk + 1) * kChunk); ++r)
      convert_row(m, r, to, values, buffer.as<>() + r * row, nullptr);
  });
  m = dense_view(to, m.rows, m.cols, buffer.as<>());
  buffers.push_back(std::move(buffer));
  return {};
}

}  // namespace

Status widen(TensorMap& tensors) {
  std::vector<RawTensor*> narrow;
  double needed = 0;
  for (auto& [name, tensor] : tensors.tensors) {
    const bool experts = tensor.shape.size() > 2;  // expert_formats.h
    if (find_ggml_blocks(tensor.dtype) == nullptr || experts) continue;
    narrow.push_back(&tensor);
    needed += static_cast<double>(q8_bytes(tensor.shape));
  }
  if (narrow.empty()) return {};
  RETURN_IF_ERROR(check_room(needed, "Q8_0", narrow[0]->file->path()));
  ThreadPool pool(0);
  for (RawTensor* const tensor : narrow)
    RETURN_IF_ERROR(widen(*tensor, *find_ggml_blocks(tensor->dtype), pool, tensors));
  return {};
}

std::vector<std::string> widened_formats(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> lines;
  for (const GgmlBlocks& from : ggml_blocks()) {
    int count = 0;
    double stored = 0, held = 0;
    for (const TensorInfo& t : tensors) {
      if (t.dtype != from.name || t.shape.size() > 2) continue;
      ++count, stored += static_cast<double>(t.bytes), held += static_cast<double>(q8_bytes(t.shape));
    }
    if (count > 0)
      lines.push_back(fmt::format("{} becomes Q8_0 ({}): {} tensors, {:.2f} GB become {:.2f} GB", from.name,
                                  from.exact ? "exact" : "rounded", count, stored / 1e9, held / 1e9));
  }
  return lines;
}

Result<std::string> unify_qkv(std::vector<LayerWeights>& layers, const std::string& file,
                              std::vector<Buffer>& buffers) {
  std::vector<std::pair<MatrixView*, Format>> others;
  double held = 0;
  for (LayerWeights& w : layers) {
    const Qkv qkv = {&w.q, &w.k, &w.v};
    const std::optional<Format> joint = joint_format(qkv);
    for (MatrixView* const m : qkv) {
      if (!joint || m->format == *joint) continue;
      others.emplace_back(m, *joint);
      held += static_cast<double>(row_bytes(*joint, m->cols)) * static_cast<double>(m->rows);
    }
  }
  if (others.empty()) return std::string();
  RETURN_IF_ERROR(check_room(held, "F32 or BF16", file));
  ThreadPool pool(0);
  for (const auto& [m, to] : others) RETURN_IF_ERROR(convert(*m, to, pool, buffers));
  return fmt::format("q, k and v in several formats become one (exact): {} tensors, {:.2f} GB", others.size(),
                     held / 1e9);
}

}  // namespace moesaic
