#include "backend/cuda/ops/experts.h"

#include <algorithm>

#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm90/gemm_split_k.h"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

sm120::Tile tile_of(const MoeKernelConfig& kernel_config, int parts) {
  return kernel_config.kernel == MoeKernel::kW4A8Prefill ? sm120::Tile::kPrefill
                                                         : sm120::tile_for(kernel_config.tile, parts);
}

struct Sizes {
  size_t experts, top_k, hidden, intermediate, rows;
};
MoeScratch deal(MemoryPieces& pieces, const Sizes& s) {
  const size_t pairs = s.rows * s.top_k, tokens = sm90::tile_tokens(pairs, s.experts);
  const auto room = [&](size_t cols) {
    return std::max(tokens * cols * 2,
                    sm120::token_buffer_bytes(pairs, s.experts, static_cast<int>(cols), sm120::kMostParts));
  };
  MoeScratch scratch;
  scratch.ids = pieces.take<int32_t>(pairs * 4);
  scratch.weights = pieces.take<float>(pairs * 4);
  scratch.permuted_rows = pieces.take<int32_t>(pairs * 4);
  scratch.source_rows = pieces.take<int32_t>(pairs * 4);
  scratch.work_tiles = pieces.take<WorkTile>((pairs + s.experts) * sizeof(WorkTile));
  scratch.work_tile_count = pieces.take<int>(sizeof(int));
  scratch.arrived = pieces.take<int>(sizeof(int));
  scratch.tiles = pieces.take<void>(room(std::max(s.hidden, s.intermediate)));  // a rank's columns, too
  scratch.hidden = pieces.take<void>(room(s.intermediate));
  scratch.out = pieces.take<float>(pairs * s.hidden * 4);
  return scratch;
}
Sizes sizes_of(int experts, int top_k, int hidden, int intermediate, int rows) {
  return {static_cast<size_t>(experts), static_cast<size_t>(top_k), static_cast<size_t>(hidden),
          static_cast<size_t>(intermediate), static_cast<size_t>(rows)};
}

// Words of two 16-bit values.
Range halves(Range columns) { return {columns.first / 2, columns.count / 2}; }

int most_work_tiles(const LayerExperts& e, int rows, int tile) {
  return max_work_tiles(rows, e.experts, e.top_k, tile);
}

// The first product's activations: the permuted rows.
Activations permuted_activations(const LayerExperts& e, const ExpertRows& x, int tile,
                                 const MoeScratch& scratch) {
  return {.x = x.x,
          .rows = scratch.source_rows,
          .factor = 1.0f / x.factor,
          .tokens = most_work_tiles(e, x.rows, tile),
          .work_tiles = scratch.work_tiles,
          .work_tile_count = scratch.work_tile_count,
          .tile = tile};
}

// Where the second product goes.
Store expert_out(const LayerExperts& e, const MoeScratch& scratch) {
  return {.out = scratch.out + e.out_rows.first,
          .stride = e.hidden,
          .bias = e.down_bias,
          .rows = static_cast<int>(e.out_rows.count)};
}

// The columns of h that the other ranks make. part: this rank's, of this many halves a row.
Status gather_hidden(const LayerExperts& e, const void* part, int64_t stride, int rows,
                     const MoeScratch& scratch, cudaStream_t stream) {
  if (e.ranks == nullptr) return {};
  return e.ranks->gather(
      {.part = static_cast<const uint32_t*>(part),
       .part_stride = stride / 2,
       .whole = cast<uint32_t>(scratch.hidden_of),
       .width = e.intermediate / 2,
       .rows = rows * e.top_k,
       .columns = e.ranks->columns(1, [&](const RankShare& r) { return halves(r.rows(e.intermediate)); })},
      stream);
}

// In FP8 the rows stand in scratch.out until the second product writes it, and h, once whole, in
// scratch.tiles.
Status run_gemm(const LayerExperts& e, const ExpertRows& rows, const MoeKernelConfig& kernel_config,
                const MoeScratch& scratch, cudaStream_t stream) {
  const bool fp8 = kernel_config.kernel == MoeKernel::kGemmFp8;
  Activations x = permuted_activations(e, rows, kernel_config.tile, scratch);
  if (fp8) RETURN_IF_ERROR(to_fp8(x, rows.rows, e.hidden, kFp8Scale, scratch.out, stream));
  // A rank's columns stand alone first.
  void* const made = e.ranks != nullptr ? scratch.tiles : scratch.hidden;
  RETURN_IF_ERROR(gemm(*e.gate_up, x,
                       SwiGlu{.out = made,
                              .bf16 = takes_bf16(e.down->kind),
                              .intermediate = static_cast<int>(e.h_columns.count),
                              .gate_bias = e.gate_bias,
                              .up_bias = e.up_bias,
                              .alpha = e.activation.alpha,
                              .limit = e.activation.limit,
                              .offset = e.activation.offset},
                       stream));
  RETURN_IF_ERROR(gather_hidden(e, made, e.h_columns.count, rows.rows, scratch, stream));
  x.x = scratch.hidden, x.rows = nullptr, x.factor = 1.0f;
  if (fp8)
    RETURN_IF_ERROR(to_fp8(x, rows.rows * e.top_k, e.intermediate, kFp8HiddenScale, scratch.tiles, stream));
  return gemm(*e.down, x, expert_out(e, scratch), stream);
}

Status run_split_k(const LayerExperts& e, const ExpertRows& rows, const Route& routing,
                   const MoeScratch& scratch, cudaStream_t stream) {
  const bool routes = routing.logits != nullptr && sm90::split_k_routes(routing);
  const sm90::SplitKRoute route{routing, routes ? scratch.arrived : nullptr, scratch.fault};
  Activations x = permuted_activations(e, rows, routing.tile, scratch);
  __half* const made = static_cast<__half*>(scratch.hidden) + e.h_columns.first;
  RETURN_IF_ERROR(sm90::split_k_up(e.fc1_slabs, e.layout, x, route, made, stream));
  RETURN_IF_ERROR(gather_hidden(e, made, e.intermediate, rows.rows, scratch, stream));
  x.x = scratch.hidden, x.rows = nullptr, x.factor = 1.0f / sm90::kHScale;
  return sm90::split_k_down(e.fc2_slabs, e.layout, x, route, expert_out(e, scratch), stream);
}

Status run_tiles(const LayerExperts& e, const ExpertRows& rows, const MoeKernelConfig& kernel_config,
                 const MoeScratch& scratch, cudaStream_t stream) {
  const int tile = kernel_config.tile;
  sm90::ActivationTiles x{.data = scratch.tiles,
                          .cols = e.hidden,
                          .work_tiles = scratch.work_tiles,
                          .work_tile_count = scratch.work_tile_count,
                          .most_work_tiles = most_work_tiles(e, rows.rows, tile),
                          .tile = tile,
                          .fp8 = kernel_config.kernel == MoeKernel::kWgmmaFp8,
                          .layout = e.layout};
  RETURN_IF_ERROR(sm90::arrange(rows.x, scratch.source_rows, x, stream));
  sm90::WgmmaSwiGlu h{.out = static_cast<uint8_t*>(scratch.hidden),
                      .gate_bias = e.gate_bias,
                      .up_bias = e.up_bias,
                      .first = static_cast<int>(e.h_columns.first),
                      .columns = static_cast<int>(e.h_columns.count)};
  for (int rank = 0; e.ranks != nullptr && rank < e.ranks->share().ranks; ++rank)
    if (rank != e.ranks->share().rank)
      h.peer_out[h.peers++] = static_cast<uint8_t*>(scratch.hidden_of.at[rank]);
  const auto multiply = [&](const uint8_t* slabs, float factor, const auto& out) {
    return kernel_config.kernel == MoeKernel::kMma ? sm90::mma_experts(slabs, x, factor, out, stream)
                                                   : sm90::wgmma_experts(slabs, x, factor, out, stream);
  };
  RETURN_IF_ERROR(multiply(e.fc1_slabs, 1.0f / rows.factor, h));
  if (e.ranks != nullptr) RETURN_IF_ERROR(e.ranks->await_stores(stream));
  x.data = scratch.hidden;
  return multiply(e.fc2_slabs, 1.0f / sm90::kHScale, expert_out(e, scratch));
}

Status run_w4a8(const LayerExperts& e, const ExpertRows& rows, const MoeKernelConfig& kernel_config,
                const MoeScratch& scratch, cudaStream_t stream) {
  const sm120::Tokens x{.data = static_cast<uint8_t*>(scratch.tiles),
                        .cols = e.hidden,
                        .work_tiles = scratch.work_tiles,
                        .work_tile_count = scratch.work_tile_count,
                        .most_work_tiles = most_work_tiles(e, rows.rows, kernel_config.tile),
                        .tile = kernel_config.tile,
                        .parts = e.parts};
  sm120::Tokens h = x;
  h.data = static_cast<uint8_t*>(scratch.hidden), h.cols = e.intermediate;
  RETURN_IF_ERROR(sm120::expand(static_cast<const __nv_bfloat16*>(rows.x), scratch.source_rows, x, stream));
  RETURN_IF_ERROR(sm120::gemm(sm120::weights_of(*e.gate_up), x, tile_of(kernel_config, e.parts),
                              sm120::SwiGluMx{.out = h.data,
                                              .intermediate = e.intermediate,
                                              .gate_bias = e.gate_bias,
                                              .up_bias = e.up_bias,
                                              .alpha = e.activation.alpha,
                                              .limit = e.activation.limit,
                                              .offset = e.activation.offset},
                              stream));
  return sm120::gemm(sm120::weights_of(*e.down), h, tile_of(kernel_config, e.parts), expert_out(e, scratch),
                     stream);
}

}  // namespace

// A rank's part of the work. It is the same on all ranks, which must choose the same kernel, though one may
// have a unit more than another.
MoeShape shape_of(const LayerExperts& e, int rows) {
  const int ranks = e.ranks == nullptr ? 1 : e.ranks->share().ranks;
  const auto of_rank = [&](const Matrix& m, int64_t own, int64_t all) {
    return m.bytes() / own * all / ranks;
  };
  return {.tokens = rows,
          .top_k = e.top_k,
          .experts = e.experts,
          .hidden = e.hidden,
          .intermediate = e.intermediate / ranks,
          .expert_bytes = (of_rank(*e.gate_up, e.h_columns.count, e.intermediate) +
                           of_rank(*e.down, e.out_rows.count, e.hidden)) /
                          e.experts};
}

std::span<const MoeKernelConfig> configs_of(const LayerExperts& e) {
  return e.w4a8 ? w4a8_configs(e.parts, e.emulated) : sm90_configs(e.slabs, e.fp8, e.wgmma);
}

size_t moe_scratch_bytes(int experts, int top_k, int hidden, int intermediate, int rows) {
  MemoryPieces pieces(nullptr);
  deal(pieces, sizes_of(experts, top_k, hidden, intermediate, rows));
  return pieces.bytes();
}

MoeScratch moe_scratch(void* memory, int experts, int top_k, int hidden, int intermediate, int rows) {
  MemoryPieces pieces(memory);
  return deal(pieces, sizes_of(experts, top_k, hidden, intermediate, rows));
}

Route routing_of(const LayerExperts& e, int rows, int tile, const float* logits, const MoeScratch& scratch) {
  return {.logits = logits,
          .rows = rows,
          .experts = e.experts,
          .top_k = e.top_k,
          .tile = tile,
          .even = e.slabs,
          .ids = scratch.ids,
          .weights = scratch.weights,
          .permuted_rows = scratch.permuted_rows,
          .source_rows = scratch.source_rows,
          .work_tiles = scratch.work_tiles,
          .work_tile_count = scratch.work_tile_count};
}

bool routes_itself(const MoeKernelConfig& kernel_config, const Route& routing) {
  return kernel_config.kernel == MoeKernel::kDecode ||
         (kernel_config.kernel == MoeKernel::kSplitK && sm90::split_k_routes(routing));
}

Status run_decode(const LayerExperts& e, const ExpertsDecode& d, cudaStream_t stream) {
  sm90::MoeDecode p{.fc1 = e.fc1_slabs,
                    .fc2 = e.fc2_slabs,
                    .x = d.x,
                    .x_scale = d.x_scale,
                    .logits = d.logits,
                    .experts = e.experts,
                    .residual = d.residual + e.out_rows.first,
                    .out = d.out + e.out_rows.first,
                    .h = static_cast<__half*>(d.h),
                    .h_clear = static_cast<__half*>(d.h_clear),
                    .clear_vectors = static_cast<int>(d.clear_bytes / 16),
                    .tokens = d.rows,
                    .layout = e.layout,
                    .h_first = static_cast<int>(e.h_columns.first),
                    .fault = d.fault};
  for (int rank = 0; e.ranks != nullptr && rank < e.ranks->share().ranks; ++rank) {
    if (rank != e.ranks->share().rank) p.peer_h[p.peers++] = static_cast<__half*>(d.h_of.at[rank]);
  }
  if (e.ranks == nullptr) return sm90::moe_decode(p, stream);
  p.sender = e.ranks->sender(e.hidden);
  RETURN_IF_ERROR(sm90::moe_decode(p, stream));
  return e.ranks->receive(d.out, d.rows, e.hidden, stream);
}

Status run_products(const LayerExperts& e, const ExpertRows& x, const MoeKernelConfig& kernel_config,
                    const Route& routing, const MoeScratch& scratch, cudaStream_t stream) {
  switch (kernel_config.kernel) {
    case MoeKernel::kSplitK:
      return run_split_k(e, x, routing, scratch, stream);
    case MoeKernel::kWgmma:
    case MoeKernel::kWgmmaFp8:
    case MoeKernel::kMma:
      return run_tiles(e, x, kernel_config, scratch, stream);
    case MoeKernel::kGemm:
    case MoeKernel::kGemmFp8:
      return run_gemm(e, x, kernel_config, scratch, stream);
    case MoeKernel::kW4A8:
    case MoeKernel::kW4A8Prefill:
      return run_w4a8(e, x, kernel_config, scratch, stream);
    case MoeKernel::kDecode:
      break;  // run_decode()
  }
  return no_kernel("moe", *e.gate_up, x.rows);
}

}  // namespace moesaic::cuda
