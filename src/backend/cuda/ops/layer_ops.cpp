#include "backend/cuda/ops/layer_ops.h"

#include <algorithm>

#include "backend/cuda/ops/attention.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

Qkv qkv_of(const Layer& layer, const QkvRows& rows) {
  return {.bias = layer.qkv_bias.as<float>(),
          .head_dim = layer.shape.head_dim,
          .heads = layer.shape.heads,
          .kv_heads = layer.shape.kv_heads,
          .rotation = rows.rotation,
          .q = rows.q,
          .k = layer.k.as<void>(),
          .v = layer.v.as<void>(),
          .fp8 = layer.fp8,
          .slots = rows.slots};
}

}  // namespace

Norm norm_of(const NormRows& r, const DeviceBuffer& weight, float factor, Kind next) {
  const bool bf16 = takes_bf16(next);
  return {.x = r.x,
          .rows = r.rows,
          .hidden = r.hidden,
          .eps = static_cast<float>(r.eps),
          .factor = bf16 ? 1.0f : factor,
          .weight = weight.as<float>(),
          .out = r.out,
          .bf16 = bf16,
          .deferred = r.deferred,
          .fault = r.fault,
          .code = r.code};
}

Status qkv(const Layer& layer, const Norm& x, const QkvRows& rows, const LinearSetup& setup) {
  return linear(layer.qkv, x, qkv_of(layer, rows), setup);
}
Status qkv(const Layer& layer, const Activations& x, const QkvRows& rows, const LinearSetup& setup) {
  return linear(layer.qkv, x, qkv_of(layer, rows), setup);
}

Status attend(const Layer& layer, const AttendedRows& rows, const LinearSetup& setup) {
  const Attention p{.q = rows.q,
                    .k = layer.k.as<void>(),
                    .v = layer.v.as<void>(),
                    .fp8 = layer.fp8,
                    .sinks = layer.sinks.as<float>(),
                    .pages = rows.pages,
                    .heads = layer.shape.heads,
                    .kv_heads = layer.shape.kv_heads,
                    .head_dim = layer.shape.head_dim,
                    .window = layer.shape.window,
                    .sliding = rows.sliding,
                    .out = rows.out,
                    .bf16 = takes_bf16(layer.o.kind),
                    .tiles = reinterpret_cast<const RowTile*>(rows.tiles),
                    .tile_count = rows.tile_count,
                    .kv_splits = rows.kv_splits};
  return attend(p, rows.decode, setup.target, setup.stream);
}

Status project(const Layer& layer, const void* attended, int rows, float* x, const LinearSetup& setup) {
  return linear(layer.o, Activations{.x = attended, .tokens = rows},
                Store{.out = x,
                      .stride = layer.shape.hidden,
                      .bias = layer.o_bias.as<float>(),
                      .rows = layer.shape.hidden,
                      .add = true},
                setup);
}

Status dense_mlp(const Layer& layer, const Norm& x, void* middle, const LinearSetup& setup) {
  constexpr double kMostLimit = 1e30;  // the kernels multiply with it
  RETURN_IF_ERROR(norm(x, setup.stream));
  const int tile = x.rows <= 8 ? 8 : x.rows <= 16 ? 16 : x.rows <= 32 ? 32 : x.rows <= 64 ? 64 : 128;
  RETURN_IF_ERROR(gemm(layer.gate_up,
                       Activations{.x = x.out, .factor = 1.0f / x.factor, .tokens = x.rows, .tile = tile},
                       SwiGlu{.out = middle,
                              .bf16 = takes_bf16(layer.down.kind),
                              .intermediate = layer.shape.intermediate,
                              .gate_bias = layer.gate_bias.as<float>(),
                              .up_bias = layer.up_bias.as<float>(),
                              .alpha = static_cast<float>(layer.shape.swiglu_alpha),
                              .limit = static_cast<float>(std::min(layer.shape.swiglu_limit, kMostLimit))},
                       setup.stream));
  return linear(layer.down, Activations{.x = middle, .tokens = x.rows},
                Store{.out = x.x,
                      .stride = layer.shape.hidden,
                      .bias = layer.down_bias.as<float>(),
                      .rows = layer.shape.hidden,
                      .add = true},
                setup);
}

}  // namespace moesaic::cuda
