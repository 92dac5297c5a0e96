#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/pack_step.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 128;

// The sequence's rows within this step.
struct Part {
  int first, count;
};
__device__ Part part_of(const PackStep& p, int sequence) {
  const int begin = max(p.call.starts[sequence], p.first_row),
            end = min(p.call.starts[sequence + 1], p.first_row + p.rows);
  return {begin - p.first_row, max(end - begin, 0)};
}

__device__ int tiles_of(const PackStep& p, int rows, bool decode) {
  const bool decodes = rows <= p.most_decode_rows;
  if (decodes != decode) return 0;
  return decodes ? rows : (rows + p.tile_tokens - 1) / p.tile_tokens;
}

// The last sequence that begins at the row or before it.
__device__ int sequence_of(const PackStep& p, int row) {
  int low = 0, high = p.call.sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (p.call.starts[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ int position_at(const PackStep& p, int row) {
  const int64_t most = min(int64_t{p.table_pages} * kPageTokens, int64_t{max(p.call.longest, 1)}) - 1;
  return static_cast<int>(min(max(p.call.positions[p.first_row + row], int64_t{0}), most));
}
__device__ int page_at(const PackStep& p, int page) { return min(max(page, 0), p.pages - 1) * p.pitch; }

// Tiles of the sequences before this one.
__device__ int tiles_before(const PackStep& p, int sequence, bool decode) {
  int tiles = 0;
  for (int s = 0; s < sequence; ++s) tiles += tiles_of(p, part_of(p, s).count, decode);
  return tiles;
}
__device__ RowTile& tile_at(const PackStep& p, int tile, bool decode) {
  return reinterpret_cast<RowTile*>(p.inputs + (decode ? p.decode_tiles : p.prefill_tiles))[tile];
}

// Rows without a sequence are attended to as the first token of the first sequence, which is harmless:
// without a tile they would be projected as an earlier step left them. Their tiles, each of one row, are the
// last.
__device__ void put_padded_tile(const PackStep& p, int row, int behind) {
  const bool decodes = p.most_decode_rows > 0;
  const int tile = p.only_decodes ? row : tiles_before(p, p.call.sequences, decodes) + min(row, behind);
  tile_at(p, tile, decodes) = {.row = row, .count = 1};
}

__device__ void put_tile(const PackStep& p, int row) {
  const int behind = row + p.first_row - p.call.starts[p.call.sequences];
  if (behind >= 0) return put_padded_tile(p, row, behind);
  const int sequence = sequence_of(p, p.first_row + row);
  const Part part = part_of(p, sequence);
  const bool decodes = part.count <= p.most_decode_rows;
  const int place = row - part.first;
  if (!decodes && place % p.tile_tokens != 0) return;
  int tile = row;
  if (!p.only_decodes) tile = tiles_before(p, sequence, decodes) + (decodes ? place : place / p.tile_tokens);
  tile_at(p, tile, decodes) = {
      .row = row,
      .count = decodes ? 1 : min(p.tile_tokens, part.count - place),
      .position = position_at(p, row),
      .table = {sequence * p.table_pages, (p.call.sequences + sequence) * p.table_pages},
      .written = position_at(p, part.first)};
}

// The caller's slot of a row is below 0 if the row has no place in the cache.
__device__ int64_t slot_at(const PackStep& p, int kind, int row) {
  return (kind == 0 ? p.call.full : p.call.sliding).slots[p.first_row + row];
}

__device__ void put_row(const PackStep& p, int row) {
  const int from = p.first_row + row;
  p.inputs[p.tokens + row] = min(max(p.call.tokens[from], 0), p.vocab - 1);
  p.inputs[p.positions + row] = position_at(p, row);
  for (int kind = 0; kind < 2; ++kind) {
    // Nobody reads the first page's first token: serving engines keep that page for this.
    const int64_t slot = max(slot_at(p, kind, row), int64_t{0});
    p.inputs[p.slots[kind] + row] =
        page_at(p, static_cast<int>(slot / kPageTokens)) * kPageTokens + static_cast<int>(slot % kPageTokens);
  }
  put_tile(p, row);
}

// A sequence's pages up to its last token.
__device__ void put_table(const PackStep& p, int kind, int sequence) {
  const Part part = part_of(p, sequence);
  const int pages = part.count == 0 ? 1 : position_at(p, part.first + part.count - 1) / kPageTokens + 1;
  const StepPageTables& from = kind == 0 ? p.call.full : p.call.sliding;
  int32_t* const to = p.inputs + p.tables + (kind * p.call.sequences + sequence) * p.table_pages;
  for (int i = static_cast<int>(threadIdx.x); i < min(pages, static_cast<int>(from.stride)); i += kThreads)
    to[i] = page_at(p, from.pages[sequence * from.stride + i]);
}

// The CTA clears the pages whose first place the row will write.
__device__ void clear_pages(const PackStep& p, int row) {
  const int half = p.half_bytes / static_cast<int>(sizeof(uint4));
  for (int kind = 0; kind < 2; ++kind) {
    const int64_t slot = slot_at(p, kind, row);
    if (slot < 0 || slot % kPageTokens != 0) continue;
    const int64_t first = int64_t{page_at(p, static_cast<int>(slot / kPageTokens))} * half;
    for (int layer = 0; layer < p.layers; ++layer) {
      const GivenCache& cache = p.caches[layer];
      if (cache.sliding != (kind == 1)) continue;
      for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += kThreads)
        reinterpret_cast<uint4*>(cache.base)[first + i] = make_uint4(0, 0, 0, 0);
    }
  }
}

// Grid: CTAs of kThreads rows, then one for each table of a sequence.
__global__ void __launch_bounds__(kThreads) pack_step_kernel(const PackStep p) {
  const int row_ctas = (p.rows + kThreads - 1) / kThreads, cta = static_cast<int>(blockIdx.x);
  if (cta >= row_ctas) return put_table(p, (cta - row_ctas) % 2, (cta - row_ctas) / 2);
  const int first = cta * kThreads, row = first + static_cast<int>(threadIdx.x);
  if (row < p.rows) put_row(p, row);
  if (*p.fault <= 0 && *p.spoiled == 0) return;
  for (int r = first; r < min(first + kThreads, p.rows); ++r) clear_pages(p, r);
}

__global__ void __launch_bounds__(kThreads)
    to_half_kernel(const __nv_bfloat16* x, int64_t count, float factor, __half* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = __float2half_rn(factor * __bfloat162float(x[i]));
}

}  // namespace

Status pack_step(const PackStep& p, cudaStream_t stream) {
  const int ctas = (p.rows + kThreads - 1) / kThreads + 2 * p.call.sequences;
  return launch_alone(pack_step_kernel, dim3(ctas), dim3(kThreads), 0, stream, p);
}

Status to_half(const void* x, int64_t count, float factor, void* out, cudaStream_t stream) {
  const auto ctas = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  return launch_alone(to_half_kernel, dim3(ctas), dim3(kThreads), 0, stream,
                      static_cast<const __nv_bfloat16*>(x), count, factor, static_cast<__half*>(out));
}

}  // namespace moesaic::cuda
