#include "backend/cuda/ops/layer_ops.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic::cuda {
namespace {

Store added(const Layer& layer, const DeviceBuffer& bias, float* x) {
  const int hidden = layer.shape.hidden;
  return {.out = x, .stride = hidden, .bias = bias.as<float>(), .rows = hidden, .add = true};
}

Activations activations_of(const Attended& attended) {
  return {.x = attended.data, .tokens = attended.rows, .arranged = attended.tile};
}

}  // namespace

Norm norm_of(Norm n, const DeviceBuffer& weight, float factor, Kind next) {
  n.bf16 = takes_bf16(next);
  if (!n.bf16) n.factor = factor;
  n.weight = weight.as<float>();
  return n;
}

Qkv qkv_of(const Layer& layer, const float2* rotation, const int32_t* slots, __nv_bfloat16* q) {
  return {.bias = layer.qkv_bias.as<float>(),
          .head_dim = layer.shape.head_dim,
          .heads = layer.shape.heads,
          .kv_heads = layer.shape.kv_heads,
          .rotation = rotation,
          .q = q,
          .k = layer.k_pages(),
          .v = layer.v_pages(),
          .fp8 = layer.fp8,
          .slots = slots};
}

Attended attended_in(const Layer& layer, int rows, void* plain, const LinearSetup& setup) {
  const int tile = arranged_tile(layer.o, rows, setup);
  return {.data = tile > 0 ? setup.tiles : plain, .rows = rows, .tile = tile};
}

Attention attention_of(const Layer& layer, const __nv_bfloat16* q, const int32_t* pages,
                       const Attended& out) {
  return {.q = q,
          .k = layer.k_pages(),
          .v = layer.v_pages(),
          .fp8 = layer.fp8,
          .sinks = layer.sinks.as<float>(),
          .pages = pages,
          .heads = layer.shape.heads,
          .kv_heads = layer.shape.kv_heads,
          .head_dim = layer.shape.head_dim,
          .window = layer.shape.window,
          .out = out.data,
          .bf16 = takes_bf16(layer.o.kind),
          .out_tile = out.tile};
}

Status project(const Layer& layer, const Attended& attended, float* x, const LinearSetup& setup) {
  return linear(layer.o, activations_of(attended), added(layer, layer.o_bias, x), setup);
}

Status project(const Layer& layer, const Attended& attended, const OfRanks<float>& x,
               const LinearSetup& setup, RankExchange& ranks) {
  float* const own = x.at[ranks.share().rank];
  if (ranks.alone()) return project(layer, attended, own, setup);
  const int rows = attended.rows;
  Store out = added(layer, layer.o_bias, own + layer.out_rows.first);
  out.rows = static_cast<int>(layer.out_rows.count);
  const Activations in = activations_of(attended);
  if (can_send(layer.o, rows, setup)) {
    RETURN_IF_ERROR(linear_sent(layer.o, in, out, ranks.sender(layer.shape.hidden), setup));
    return ranks.receive(own, rows, layer.shape.hidden, setup.stream);
  }
  RETURN_IF_ERROR(linear(layer.o, in, out, setup));
  return ranks.gather_floats(x, rows, layer.shape.hidden, {}, setup.stream);
}

Status dense_mlp(const Layer& layer, const Norm& n, void* middle, const LinearSetup& setup) {
  constexpr double kMostLimit = 1e30;  // the kernels multiply with it
  RETURN_IF_ERROR(norm(n, setup.stream));
  const int tile = n.rows <= 8 ? 8 : n.rows <= 16 ? 16 : n.rows <= 32 ? 32 : n.rows <= 64 ? 64 : 128;
  const SwiGlu swiglu{.out = middle,
                      .bf16 = takes_bf16(layer.down.kind),
                      .intermediate = layer.shape.intermediate,
                      .gate_bias = layer.gate_bias.as<float>(),
                      .up_bias = layer.up_bias.as<float>(),
                      .alpha = static_cast<float>(layer.shape.swiglu_alpha),
                      .limit = static_cast<float>(std::min(layer.shape.swiglu_limit, kMostLimit))};
  const Activations x{.x = n.out, .factor = 1.0f / n.factor, .tokens = n.rows, .tile = tile};
  RETURN_IF_ERROR(gemm(layer.gate_up, x, swiglu, setup.stream));
  return linear(layer.down, Activations{.x = middle, .tokens = n.rows}, added(layer, layer.down_bias, n.x),
                setup);
}

}  // namespace moesaic::cuda
