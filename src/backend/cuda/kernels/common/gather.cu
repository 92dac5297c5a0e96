// Exchanges between ranks: each has some columns of a matrix, and all get the whole.
//
// Shapes   whole [rows, width] words on every rank; rank r makes the columns [first[r], first[r + 1])
//
// Few      Up to kInboxWords words: one thread a word of the matrix. A word of this rank goes to every other
//          rank's inbox as 64 bits, {value, epoch}; one of another rank is polled in this rank's inbox until
//          its epoch is this exchange's. A word says for itself that it is there: no order between words is
//          needed, and no fence. A kernel that makes floats may send them itself (word_sender.cuh); then only
//          the others' are polled, by receive_kernel. Floor: 0.7 us from a GPU to another through NVLink.
// Many     Up to kGatherCtas CTAs copy this rank's words to the others' matrices in vectors, several of them
//          in flight a thread. Then each CTA says so (a fence, some us, and a flag), and CTA 0 waits until
//          all CTAs of all ranks have (acquire). The kernel ends behind that, so its successor sees all
//          words. Floor: bytes / NVLink's bandwidth in one direction.
//          A kernel that makes the words may store them into the others' matrices itself: then one CTA says
//          so for all of it, and waits (await_stores_kernel).
//
// Ordering Nobody overwrites what others may still read:
//
//          Inbox     It has four quarters (inbox_slot()), so another exchange e' lies between two that use
//                    the same one. A rank writes to a quarter again behind e', for which it has seen a word
//                    or flag of each rank. Each of those was written by a kernel that began
//                    (wait_for_predecessor) when its rank had ended all exchanges before e'.
//          Matrices  A rank writes to another's matrix in exchange e. The old values were last read there
//                    before that rank's part of an exchange e' < e, which this rank has seen. The step's
//                    order of exchanges (attended, x, h, x) gives every matrix such an e'.
//          arrived   Epochs only grow, and a larger one says as much.
//
// Resident CTAs of one device do not wait for each other, but for other devices. So ranks may not share a
//          device, unless each has multiprocessors of its own. A wait of 4 to 9 s gives up (patience.cuh).
#include <algorithm>

#include "backend/cuda/kernels/common/gather.h"
#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/patience.cuh"
#include "backend/cuda/kernels/ptx/system_scope.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 512;

// Adds what is deferred to this rank's words of one row, from `column` of the matrix on, in the norm's order
// (norm.cuh). They are floats then.
template <typename Vector>
__device__ __forceinline__ Vector with_deferred(const Gather& p, int row, int column, Vector words) {
  if (p.deferred.expert_out == nullptr) return words;
  auto* const sum = reinterpret_cast<float*>(&words);
  for (int k = 0; k < p.deferred.top_k; ++k) {
    const int pair = row * p.deferred.top_k + k;
    const int64_t from = static_cast<int64_t>(p.deferred.permuted_rows[pair]) * p.width + column;
    const Vector y = *reinterpret_cast<const Vector*>(p.deferred.expert_out + from);
    const float weight = p.deferred.weights[pair];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Vector) / 4); ++i)
      sum[i] = fmaf(weight, reinterpret_cast<const float*>(&y)[i], sum[i]);
  }
  return words;
}

template <typename Body>
__device__ __forceinline__ void each_peer(const RankLinks& links, const Body& body) {
#pragma unroll
  for (int i = 1; i < kMostRanks; ++i) {
    if (i >= links.ranks) break;
    const int peer = links.rank + i;
    body(peer < links.ranks ? peer : peer - links.ranks);
  }
}

// Waits for a word in this rank's inbox.
__device__ __forceinline__ uint32_t wait_for_word(const RankLinks& links, int slot, uint32_t epoch) {
  Patience patience;
  uint64_t word = 0;
  do word = ld_relaxed_system(links.inbox.at[links.rank] + slot);
  while (word >> 32 != epoch && !patience.ended(links.fault, true));
  return static_cast<uint32_t>(word);
}

// Returns the place in a matrix of the i-th word that another rank makes.
__device__ __forceinline__ int place_of_other(const RankColumns& columns, int rank, int width, int i) {
  const int first = columns.first[rank], own = columns.first[rank + 1] - first, others = width - own;
  const int row = i / others, column = i % others;
  return row * width + column + (column < first ? 0 : own);
}

// The first threads send this rank's words and wait for nobody, so all words are sent whatever else has room.
__global__ void __launch_bounds__(kThreads) gather_few_kernel(const RankLinks links, const Gather p) {
  launch_dependents();
  wait_for_predecessor();
  const int first = p.columns.first[links.rank], own = p.columns.first[links.rank + 1] - first;
  const int sent = p.rows * own, i = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t epoch = static_cast<uint32_t>(*links.epoch + p.index);
  uint32_t* const whole = p.whole.at[links.rank];
  if (i < sent) {
    const int row = i / own, column = i % own, at = row * p.width + first + column;
    const uint32_t word = with_deferred(p, row, first + column, p.part[row * p.part_stride + column]);
    each_peer(links, [&](int peer) {
      st_relaxed_system(links.inbox.at[peer] + inbox_slot(epoch, at), word | static_cast<uint64_t>(epoch)
                                                                                 << 32);
    });
    whole[at] = word;
  } else if (i < p.rows * p.width) {
    const int at = place_of_other(p.columns, links.rank, p.width, i - sent);
    whole[at] = wait_for_word(links, inbox_slot(epoch, at), epoch);
  }
}

// Its predecessor has seen this step's inputs when it lets this kernel begin (word_sender.cuh). The columns
// that are written are not its own, which alone it still reads.
__global__ void __launch_bounds__(kThreads) receive_kernel(const RankLinks links, const Receive p) {
  launch_dependents();
  const int own = p.columns.first[links.rank + 1] - p.columns.first[links.rank];
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < p.rows * (p.width - own)) {
    const uint32_t epoch = static_cast<uint32_t>(*links.epoch + p.index);
    const int at = place_of_other(p.columns, links.rank, p.width, i);
    p.x[at] = __uint_as_float(wait_for_word(links, inbox_slot(epoch, at), epoch));
  }
  wait_for_predecessor();
}

// By all threads of a CTA that has stored its part. CTA 0 returns when all CTAs of all ranks have.
__device__ void meet_ranks(const RankLinks& links, uint32_t epoch) {
  __syncthreads();
  const int thread = threadIdx.x, ctas = gridDim.x;
  if (thread < links.ranks && thread != links.rank)
    st_release_system(links.arrived.at[thread] + links.rank * kGatherCtas + blockIdx.x, epoch);
  if (blockIdx.x > 0) return;
  for (int i = thread; i < links.ranks * ctas; i += kThreads) {
    const int rank = i / ctas;
    if (rank == links.rank) continue;
    const uint32_t* const from = links.arrived.at[links.rank] + rank * kGatherCtas + i % ctas;
    Patience patience;
    while (static_cast<int32_t>(ld_acquire_system(from) - epoch) < 0 && !patience.ended(links.fault, true)) {
    }
  }
}

constexpr int kAtOnce = 4;  // vectors that a thread loads before it stores the first

template <typename Vector>
__global__ void __launch_bounds__(kThreads) gather_many_kernel(const RankLinks links, const Gather p) {
  constexpr int kWords = sizeof(Vector) / 4;
  launch_dependents();
  wait_for_predecessor();
  const int first = p.columns.first[links.rank], vectors = (p.columns.first[links.rank + 1] - first) / kWords;
  const bool moves = p.part != p.whole.at[links.rank] + first || p.deferred.expert_out != nullptr;
  const int stride = gridDim.x * kThreads, all = p.rows * vectors;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < all; i += kAtOnce * stride) {
    Vector v[kAtOnce];
    int64_t at[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int index = min(i + j * stride, all - 1), row = index / vectors, column = index % vectors;
      const auto* from = reinterpret_cast<const Vector*>(p.part + row * p.part_stride);
      v[j] = with_deferred(p, row, first + column * kWords, from[column]);
      at[j] = (static_cast<int64_t>(row) * p.width + first) / kWords + column;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * stride >= all) break;
      each_peer(links, [&](int peer) { reinterpret_cast<Vector*>(p.whole.at[peer])[at[j]] = v[j]; });
      if (moves) reinterpret_cast<Vector*>(p.whole.at[links.rank])[at[j]] = v[j];
    }
  }
  meet_ranks(links, static_cast<uint32_t>(*links.epoch + p.index));
}

// Its predecessor's stores have ended, so that the one fence of meet_ranks() covers them.
__global__ void __launch_bounds__(kThreads) await_stores_kernel(const RankLinks links, int index) {
  launch_dependents();
  wait_for_predecessor();
  meet_ranks(links, static_cast<uint32_t>(*links.epoch + index));
}

bool in_fours(const RankLinks& links, const Gather& p) {
  bool fours = p.width % 4 == 0 && p.part_stride % 4 == 0;
  for (int rank = 0; rank <= links.ranks; ++rank) fours = fours && p.columns.first[rank] % 4 == 0;
  return fours;
}

}  // namespace

Status gather(const RankLinks& links, const Gather& p, cudaStream_t stream) {
  if (p.rows == 0) return {};
  if (static_cast<int64_t>(p.rows) * p.width <= kInboxWords)
    return launch(gather_few_kernel, dim3((p.rows * p.width + kThreads - 1) / kThreads), dim3(kThreads), 0,
                  stream, links, p);
  // The same on all ranks, whose parts need not be equally wide.
  const int64_t threads = static_cast<int64_t>(p.rows) * p.width / 4 / links.ranks;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(threads / kThreads, 1, kGatherCtas)));
  return in_fours(links, p) ? launch(gather_many_kernel<uint4>, grid, dim3(kThreads), 0, stream, links, p)
                            : launch(gather_many_kernel<uint32_t>, grid, dim3(kThreads), 0, stream, links, p);
}

Status receive(const RankLinks& links, const Receive& p, cudaStream_t stream) {
  return launch(receive_kernel, dim3((p.rows * p.width + kThreads - 1) / kThreads), dim3(kThreads), 0, stream,
                links, p);
}

Status await_stores(const RankLinks& links, int index, cudaStream_t stream) {
  return launch(await_stores_kernel, dim3(1), dim3(kThreads), 0, stream, links, index);
}

}  // namespace moesaic::cuda
