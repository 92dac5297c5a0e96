#include "backend/cpu/gemm.h"

#include <cstring>

#include "base/error.h"
#include "mx/block.h"

namespace moesaic::cpu {

namespace {
int64_t element_bytes(Act format) { return format == Act::kInt8 ? 1 : format == Act::kBF16 ? 2 : 4; }
}  // namespace

void ActRows::assign(const Kernels& kernels, ThreadPool& pool, Act format, const float* x, int64_t stride,
                     int rows, int64_t cols, const Rounding& rounding) {
  const int64_t element = element_bytes(format);
  const int64_t blocks = format == Act::kInt8 ? cols / mx::kBlock : 0;
  data_.resize(rows * cols * element);
  scale_.resize(rows * blocks);
  bias_.resize(rows * blocks);
  view_ = {
      .format = format, .data = data_.data(), .scale = scale_.data(), .bias = bias_.data(), .cols = cols};
  pool.for_each(rows, [&](int64_t r, int) {
    uint8_t* out = data_.data() + r * cols * element;
    const float* row = x + r * stride;
    if (format == Act::kInt8) {
      kernels.quantize_row(row, cols, reinterpret_cast<int8_t*>(out), scale_.data() + r * blocks,
                           bias_.data() + r * blocks);
    } else if (format == Act::kBF16) {
      kernels.to_bf16(row, cols, reinterpret_cast<uint16_t*>(out));
    } else {
      std::memcpy(out, row, cols * sizeof(float));
      rounding.apply({reinterpret_cast<float*>(out), static_cast<size_t>(cols)});
    }
  });
}

ActView rows_from(const ActView& act, int64_t first) {
  const int64_t blocks = act.format == Act::kInt8 ? act.cols / mx::kBlock : 0;
  return {.format = act.format,
          .data = static_cast<const uint8_t*>(act.data) + first * act.cols * element_bytes(act.format),
          .scale = act.scale + first * blocks,
          .bias = act.bias + first * blocks,
          .cols = act.cols};
}

Result<std::vector<Workspace>> make_workspaces(int threads, int64_t max_cols) {
  std::vector<Workspace> workspaces(threads);
  for (Workspace& w : workspaces) {
    ASSIGN_OR_RETURN(w.scratch, Buffer::allocate(2 * max_cols / mx::kBlock * (512 + 64)));
    ASSIGN_OR_RETURN(w.tile, Buffer::allocate(kTokenBlock * 2 * kPanel * sizeof(float)));
  }
  return workspaces;
}

const float* run_pair(const Kernels& kernels, const PackedMatrix& m, int64_t pair, const ActView& act,
                      const int32_t* rows, int tokens, Workspace& workspace) {
  const int64_t slot = m.slot(pair);
  kernels.gemm({.pack = m.pack,
                .data = m.data.as<uint8_t>() + slot * m.data_stride,
                .scales = m.scales.as<uint8_t>() + slot * m.scale_stride,
                .act = act,
                .rows = rows,
                .tokens = tokens,
                .scratch = workspace.scratch.as<uint8_t>(),
                .out = workspace.tile.as<float>()});
  return workspace.tile.as<float>();
}

}  // namespace moesaic::cpu
