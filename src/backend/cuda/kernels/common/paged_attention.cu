// attend_paged(): attention_portable.cuh over a caller's pages, whose rows are gathered by cp.async.
//
// Shapes   a stage has 32 keys of one KV head, of up to two pages, each a row of head_dim values. In rows of
//          up to 128 bytes the 16-byte chunks are permuted by the row's number, so that neither keys (read as
//          pairs along a row) nor values (read down a column) meet a bank twice.
// Roles    all threads copy: a chunk of K and the same of V at a time.
// Barriers a thread closes a group of copies in each fetch(), so that waiting counts fetches; then
//          __syncthreads(). `absent` is written before that barrier and read behind it.
// Bytes    what is attended to, once for every 64 MMA rows. Keys before a window or after the last row are
//          zeros, and are not read.
#include <bit>

#include "backend/cuda/kernels/common/attention_portable.cuh"
#include "backend/cuda/kernels/common/paged_attention.h"
#include "backend/cuda/kernels/ptx/load.cuh"

namespace moesaic::cuda {
namespace {

using attention_portable::kStages;

template <int kRowBytes>
struct RowRing {
  alignas(128) uint8_t first[kStages][kPageTokens * kRowBytes];
  alignas(128) uint8_t second[kStages][kPageTokens * kRowBytes];
  int absent;  // a page is

  __device__ void open() {
    if (threadIdx.x == 0) absent = 0;
    __syncthreads();
  }
  __device__ void wait(int) {
    cp_async_wait<kStages - 1>();
    __syncthreads();
  }
};

template <int D, bool kOfFp8>
struct PlainPages {
  static constexpr int kHeadDim = D;
  static constexpr bool kFp8 = kOfFp8;
  static constexpr int kBytes = kFp8 ? 1 : 2, kRow = D * kBytes, kChunks = kRow / 16;
  static constexpr int kWidth = kRow < 128 ? kRow : 128;  // bytes of a row in a stage; longer rows are cut
  using Ring = RowRing<kRow>;

  PagedLayout layout;
  int page_bits;  // bits of a token's number that are its place in a page

  // Where byte `byte` of a token stands in a stage.
  static __device__ constexpr int at(int token, int byte) {
    constexpr int kInRow = kWidth / 16;
    const int chunk = byte % kWidth / 16, turned = chunk ^ (token / (8 / kInRow) % kInRow);
    return (byte / kWidth * kPageTokens + token) * kWidth + turned * 16 + byte % 16;
  }

  __device__ void fetch(Ring& ring, const Attention& p, const RowTile& tile,
                        const attention_portable::Pages& pages, int n) const {
    const int page = pages.page(n), stage = n % kStages;
    for (int i = static_cast<int>(threadIdx.x); page < pages.to && i < kPageTokens * kChunks;
         i += static_cast<int>(blockDim.x)) {
      const int token = i / kChunks, key = page * kPageTokens + token, byte = i % kChunks * 16;
      bool wanted = key >= pages.first_key && key <= pages.last_key;
      const int from = wanted && tile.table[0] >= 0 ? p.pages[tile.table[0] + (key >> page_bits)] : -1;
      if (wanted && (from < 0 || from >= layout.pages)) ring.absent = 1, wanted = false;
      const int64_t where = wanted ? from * layout.page_stride +
                                         (key & ((1 << page_bits) - 1)) * layout.token_stride +
                                         blockIdx.y * layout.head_stride + byte
                                   : 0;
      cp_async(ring.first[stage] + at(token, byte), static_cast<const uint8_t*>(p.k) + where, wanted);
      cp_async(ring.second[stage] + at(token, byte), static_cast<const uint8_t*>(p.v) + where, wanted);
    }
    cp_async_commit();
  }
  static __device__ bool failed(const Ring& ring) { return ring.absent != 0; }

  // As OwnPages has them.
  static __device__ uint2 key_pairs(const uint8_t* keys, int n, int step, int g, int c) {
    const int key = 8 * n + g, d = 16 * step + 2 * c;
    const uint8_t *lo = keys + at(key, d * kBytes), *hi = keys + at(key, (d + 8) * kBytes);
    if constexpr (kFp8)
      return widen_e4m3(*reinterpret_cast<const uint16_t*>(lo) |
                        static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(hi)) << 16);
    return {*reinterpret_cast<const uint32_t*>(lo), *reinterpret_cast<const uint32_t*>(hi)};
  }
  static __device__ uint2 value_pairs(const uint8_t* values, int n, int step, int g, int c) {
    const int d = 8 * n + g, token = 16 * step + 2 * c;
    const auto value = [&](int slot) -> uint32_t {
      const uint8_t* from = values + at(token + slot, d * kBytes);
      if constexpr (kFp8) return *from;
      return *reinterpret_cast<const uint16_t*>(from);
    };
    if constexpr (kFp8) return widen_e4m3(value(0) | value(1) << 8 | value(8) << 16 | value(9) << 24);
    return {value(0) | value(1) << 16, value(8) | value(9) << 16};
  }
};

// ---- the tiles ----

constexpr int kThreads = 128;

__device__ int start_of(const PagedRows& p, int sequence) { return min(max(p.starts[sequence], 0), p.rows); }
// No sequence has more tiles than come before the next one's first.
__device__ int first_tile(const PagedRows& p, int sequence, int tile_tokens) {
  return start_of(p, sequence) / tile_tokens + sequence;
}
// The last one whose first tile is `tile` or before it.
__device__ int sequence_of(const PagedRows& p, int tile, int tile_tokens) {
  int low = 0, high = p.sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_tile(p, middle, tile_tokens) <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads)
    row_tiles_kernel(const PagedRows p, int tile_tokens, RowTile* tiles, int* cleared) {
  const int tile = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (cleared != nullptr && tile < kMostSpanGroups) cleared[tile] = 0;
  if (tile >= paged_tiles(p.rows, p.sequences, tile_tokens)) return;
  const int sequence = sequence_of(p, tile, tile_tokens), first = start_of(p, sequence),
            rows = max(start_of(p, sequence + 1) - first, 0), length = p.lengths[sequence],
            place = (tile - first_tile(p, sequence, tile_tokens)) * tile_tokens;  // negative before the first
  const bool sound = length >= rows && length <= int64_t{p.table_pages} * p.page_tokens &&
                     p.starts[sequence] >= 0 && p.starts[sequence + 1] <= p.rows;
  const int table = sound ? static_cast<int>(sequence * p.table_stride) : -1,
            position = sound ? length - rows + place : 0;
  tiles[tile] = {.row = first + place,
                 .count = place >= 0 ? min(max(rows - place, 0), tile_tokens) : 0,
                 .position = position,
                 .table = {table, table},
                 .written = position};
}

}  // namespace

Status make_row_tiles(const PagedRows& p, int tile_tokens, RowTile* tiles, int* cleared,
                      cudaStream_t stream) {
  const int count =
      std::max(paged_tiles(p.rows, p.sequences, tile_tokens), cleared != nullptr ? kMostSpanGroups : 1);
  return launch_alone(row_tiles_kernel, dim3((count + kThreads - 1) / kThreads), dim3(kThreads), 0, stream, p,
                      tile_tokens, tiles, cleared);
}

Status attend_paged(const Attention& p, const PagedLayout& layout, const SpanScratch& scratch,
                    cudaStream_t stream) {
  if (p.tile_count == 0) return {};
  const int page_bits = std::countr_zero(static_cast<unsigned>(layout.page_tokens));
  return for_shape(p, [&](auto d, auto fp8) {
    return attention_portable::run(p, scratch, PlainPages<d, fp8>{layout, page_bits}, stream);
  });
}

}  // namespace moesaic::cuda
