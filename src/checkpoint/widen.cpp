#include "checkpoint/widen.h"

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
  // A sparse file of any size takes no disk.
  if (const double free = available_host_memory(); needed > free)
    return error(StatusCode::kOutOfMemory,
                 "{}: its dense matrices take {:.1f} GB as Q8_0, {:.1f} GB of memory are free",
                 narrow[0]->file->path(), needed / 1e9, free / 1e9);
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

}  // namespace moesaic
