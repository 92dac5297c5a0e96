#include "backend/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "mx/block.h"

namespace moesaic::cpu {

namespace {
constexpr int64_t kLine = 64;

bool has_blocks(Act format) { return format == Act::kInt8 || format == Act::kBlockFloat; }
int64_t element_bytes(Act format) { return format == Act::kInt8 ? 1 : format == Act::kBF16 ? 2 : 4; }

// Cache lines from row to row: an odd number, or the same column of 16 rows of 4096 bytes would share one set
// of the first cache.
int64_t row_lines(int64_t bytes) { return ((bytes + kLine - 1) / kLine) | 1; }

}  // namespace

void ActRows::assign(const Kernels& kernels, ThreadPool& pool, Act format, const float* x, int64_t stride,
                     int rows, int64_t cols, const Rounding& rounding, std::span<const int32_t> slots) {
  const int64_t blocks = has_blocks(format) ? cols / mx::kBlock : 0;
  const int64_t places = slots.empty() ? 1 : std::ssize(slots) / rows, total = rows * places;
  const int64_t lines = row_lines(cols * element_bytes(format));
  data_.resize(total * lines);
  scale_.resize(total * blocks);
  bias_.resize(total * blocks);
  view_ = {.format = format,
           .data = data_.data(),
           .parts = format == Act::kBlockFloat ? reinterpret_cast<const uint8_t*>(data_.data()) + 2 * cols
                                               : nullptr,
           .stride = lines * kLine,
           .scale = scale_.data(),
           .bias = bias_.data(),
           .cols = cols};
  pool.for_each(rows, [&](int64_t r, int) {
    if (slots.empty()) return convert(kernels, x + r * stride, rounding, r);
    int64_t first = -1;
    for (const int32_t slot : slots.subspan(r * places, places)) {
      if (slot < 0) continue;
      if (first >= 0) copy(first, slot);
      if (first < 0) convert(kernels, x + r * stride, rounding, first = slot);
    }
  });
}

void ActRows::convert(const Kernels& kernels, const float* x, const Rounding& rounding, int64_t row) {
  const int64_t cols = view_.cols, block = row * (cols / mx::kBlock);
  uint8_t* out = data_[row * (view_.stride / kLine)].bytes;
  if (view_.format == Act::kInt8) {
    kernels.quantize_row(x, cols, reinterpret_cast<int8_t*>(out), &scale_[block], &bias_[block]);
  } else if (view_.format == Act::kBF16) {
    kernels.to_bf16(x, cols, reinterpret_cast<uint16_t*>(out));
  } else if (view_.format == Act::kBlockFloat) {
    kernels.to_block_float(x, cols, reinterpret_cast<uint16_t*>(out),
                           reinterpret_cast<int8_t*>(out) + 2 * cols, &scale_[block], &bias_[block]);
  } else {
    std::memcpy(out, x, cols * sizeof(float));
    rounding.apply({reinterpret_cast<float*>(out), static_cast<size_t>(cols)});
  }
}

void ActRows::copy(int64_t from, int64_t to) {
  const int64_t lines = view_.stride / kLine, blocks = has_blocks(view_.format) ? view_.cols / mx::kBlock : 0;
  std::copy_n(&data_[from * lines], lines, &data_[to * lines]);
  std::copy_n(scale_.begin() + from * blocks, blocks, scale_.begin() + to * blocks);
  std::copy_n(bias_.begin() + from * blocks, blocks, bias_.begin() + to * blocks);
}

ActView rows_from(const ActView& act, int64_t first) {
  const int64_t blocks = has_blocks(act.format) ? act.cols / mx::kBlock : 0;
  return {
      .format = act.format,
      .data = static_cast<const uint8_t*>(act.data) + first * act.stride,
      .parts = act.parts != nullptr ? static_cast<const uint8_t*>(act.parts) + first * act.stride : nullptr,
      .stride = act.stride,
      .scale = act.scale + first * blocks,
      .bias = act.bias + first * blocks,
      .cols = act.cols};
}

Result<std::vector<Workspace>> make_workspaces(int threads, int64_t max_cols) {
  std::vector<Workspace> workspaces(threads);
  for (Workspace& w : workspaces) {
    ASSIGN_OR_RETURN(w.scratch, Buffer::allocate(scratch_bytes(max_cols)));
    ASSIGN_OR_RETURN(w.tile, Buffer::allocate(kTokenBlock * 2 * kPanel * sizeof(float)));
  }
  return workspaces;
}

const float* run_pair(const Kernels& kernels, const PackedMatrix& m, int64_t pair, const ActView& act,
                      int tokens, Workspace& workspace, const GemmTuning& tuning) {
  const int64_t slot = m.slot(pair);
  kernels.gemm({.format = m.format,
                .data = m.data.as<uint8_t>() + slot * m.data_stride,
                .scales = m.scales.as<uint8_t>() + slot * m.scale_stride,
                .act = act,
                .tokens = tokens,
                .scratch = workspace.scratch.as<uint8_t>(),
                .out = workspace.tile.as<float>(),
                .tuning = tuning});
  return workspace.tile.as<float>();
}

}  // namespace moesaic::cpu
