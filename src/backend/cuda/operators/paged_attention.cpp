// paged_attention() of backend/layer_operators.h.
#include "backend/cuda/kernels/common/paged_attention.h"

#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/operators/layer_operators.h"
#include "backend/cuda/ops/experts.h"
#include "backend/cuda/ops/workspaces.h"
#include "backend/cuda/runtime/device_guard.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

// The pieces of a call's workspace.
struct AttentionPieces {
  RowTile* tiles = nullptr;
  SpanScratch spans;
  size_t bytes = 0;
};

int tiles_of(const PagedAttentionCall& c) {
  return paged_tiles(static_cast<int>(c.rows), static_cast<int>(c.sequences),
                     tile_tokens(c.heads, c.cache.kv_heads));
}

// Spans are left for rows of few tiles alone, of full attention and longer than one span.
AttentionPieces deal(const PagedAttentionCall& c, void* memory) {
  MemoryPieces pieces(memory);
  AttentionPieces p;
  p.tiles = pieces.take<RowTile>(static_cast<size_t>(tiles_of(c)) * sizeof(RowTile));
  const int64_t spans =
      (c.table_pages * c.cache.page_tokens + kSpanPages * kPageTokens - 1) / (kSpanPages * kPageTokens);
  if (c.window == 0 && spans > 1 &&
      int64_t{tiles_of(c)} * c.cache.kv_heads * kPrefillGroups <= kMostSpanGroups) {
    const int64_t floats = c.rows * c.heads * (c.cache.head_dim + 2) * spans;
    p.spans.floats = static_cast<int>(std::min<int64_t>(floats, kSpanFloats));
    p.spans.rows = static_cast<int>(c.rows);
    p.spans.left = pieces.take<float>(static_cast<size_t>(p.spans.floats) * sizeof(float));
    p.spans.arrivals = pieces.take<int>(kMostSpanGroups * sizeof(int));
  }
  p.bytes = pieces.bytes();
  return p;
}

PagedRows rows_of(const PagedAttentionCall& c) {
  return {.rows = static_cast<int>(c.rows),
          .sequences = static_cast<int>(c.sequences),
          .starts = c.starts,
          .lengths = c.lengths,
          .table_stride = c.table_stride,
          .table_pages = static_cast<int>(c.table_pages),
          .page_tokens = c.cache.page_tokens};
}

Attention attention_of(const PagedAttentionCall& c, const RowTile* tiles) {
  return {.q = static_cast<const __nv_bfloat16*>(c.q),
          .k = c.cache.k,
          .v = c.cache.v,
          .fp8 = c.cache.fp8,
          .sinks = c.sinks,
          .pages = c.tables,
          .heads = c.heads,
          .kv_heads = c.cache.kv_heads,
          .head_dim = c.cache.head_dim,
          .window = c.window,
          .out = c.out,
          .tiles = tiles,
          .tile_count = tiles_of(c)};
}

}  // namespace

size_t attention_workspace_bytes(const PagedAttentionCall& call) { return deal(call, nullptr).bytes; }

Status paged_attention(const PagedAttentionCall& call) {
  constexpr const char* kOp = "paged_attention";
  const size_t wanted = cuda::attention_workspace_bytes(call);
  RETURN_IF_ERROR(check(call.scratch, wanted, kOp));
  static OncePerDevice usable;
  if (call.device < 0) return check_cuda_device(kOp, call.device);
  RETURN_IF_ERROR(usable.run_for(call.device, [&] { return check_cuda_device(kOp, call.device); }));
  const DeviceGuard guard(call.device);
  RETURN_IF_ERROR(guard.status());
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  void* memory = call.scratch.memory;
  std::shared_ptr<Workspaces::Block> block;
  if (memory == nullptr) {
    // Kept to the end of the process, which may come while CUDA is gone already.
    static const auto* const kept = new std::shared_ptr<Workspaces>(Workspaces::shared());
    ASSIGN_OR_RETURN(block, (*kept)->get(call.device, stream, wanted));
    memory = block->memory.as<void>();
  }
  const AttentionPieces pieces = deal(call, memory);
  RETURN_IF_ERROR(make_row_tiles(rows_of(call), tile_tokens(call.heads, call.cache.kv_heads), pieces.tiles,
                                 pieces.spans.arrivals, stream));
  return attend_paged(attention_of(call, pieces.tiles), layout_of(call.cache), pieces.spans, stream);
}

}  // namespace moesaic::cuda
