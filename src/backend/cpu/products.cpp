#include "backend/cpu/products.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace moesaic::cpu {

Status Products::make_room(int64_t columns, bool adapters) {
  ASSIGN_OR_RETURN(workspaces, make_workspaces(pool.threads(), columns));
  adapter_workspaces.clear();
  if (adapters) {
    ASSIGN_OR_RETURN(adapter_workspaces, make_workspaces(pool.threads(), 0));
  }
  return {};
}

// Activations that are rounded to an MX format meet their weights as F32, which holds them exactly.
void Products::convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride,
                       int rows, std::span<const int32_t> slots) {
  const Rounding rounding = rounding_of(moe_path_, operand, m.format);
  const Act format = rounding.rounds() ? Act::kF32 : act_format(m.format, kernels);
  act.assign(kernels, pool, format, x, stride, rows, m.cols, rounding, slots);
}

namespace {

void ask_for(const PackedMatrix& m) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < m.pairs() * m.data_stride; at += kLine)
    prefetch_line<Prefetch::kT1>(m.data.as<uint8_t>() + at);
}

}  // namespace

// Experts of several NUMA nodes lie in memory in another order than threads take them.
void Products::expect(const PackedMatrix* m, int rows, std::span<const int32_t> sections) {
  std::array<const std::byte*, ThreadPool::kMostParts> parts;
  constexpr std::array<int32_t, 1> kWhole = {0};
  if (sections.empty()) sections = kWhole;
  if (m == nullptr || rows > CpuTuning::kPanelTokens || sections.size() > parts.size() ||
      (m->sections > 1 && pool.nodes() > 1)) {
    return pool.expect({}, 0);
  }
  const int64_t bytes = m->pairs() / m->sections * m->data_stride;
  for (size_t i = 0; i < sections.size(); ++i) parts[i] = m->data.as<std::byte>() + sections[i] * bytes;
  pool.expect(std::span(parts).first(sections.size()), bytes);
}

void Products::linear(const PackedMatrix& m, const float* x, int rows, const Store& to,
                      const PackedMatrix* next) {
  convert(act_, m, Operand::kDense, x, m.cols, rows);
  for_each_tile(kernels, pool, workspaces, m, act_.view(), rows, chosen.tuning,
                [&](const float* tile, int first, int n, int64_t panel, int count, int thread) {
                  if (thread == 0 && next != nullptr) ask_for(*std::exchange(next, nullptr));
                  const int64_t column = panel * kPanel,
                                width = std::min<int64_t>(count * kPanel, to.width - column);
                  const float* bias = to.bias == nullptr ? nullptr : to.bias + column;
                  for (int t = 0; t < n; ++t, tile += kPair * kPanel) {
                    float* out = to.out + (first + t) * to.stride + column;
                    if (to.add && bias != nullptr) {
                      for (int64_t i = 0; i < width; ++i) out[i] += tile[i] + bias[i];
                    } else if (to.add) {
                      for (int64_t i = 0; i < width; ++i) out[i] += tile[i];
                    } else if (bias != nullptr) {
                      for (int64_t i = 0; i < width; ++i) out[i] = tile[i] + bias[i];
                    } else {
                      std::memcpy(out, tile, width * sizeof(float));
                    }
                  }
                });
}

}  // namespace moesaic::cpu
