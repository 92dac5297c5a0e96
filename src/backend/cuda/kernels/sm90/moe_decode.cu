// The whole mixture of experts for 1 to 8 tokens in one launch: gpt-oss's sizes (hidden = intermediate =
// 2880, top-4).
//
// Maths    per token with experts e_k and router weights p_k (k = 0..3):
//            g, u  = W1[e] x + b1[e]            rows interleaved: 2i gate, 2i+1 up
//            h_i   = min(g,7) * sigmoid(1.702 min(g,7)) * (clamp(u,-7,7) + 1)
//            out   = residual + sum_k p_k (W2[e_k] h + b2[e_k])
// Shapes   W1 [5760, 2880], W2 [2880, 2880] MXFP4 in slabs of 8 rows (slab_layout.h draws them). Slab
//          pair: the 16 rows of an mma.sync.m16n8k16 A operand; rows 0-7 and 8-15 may be different experts.
//          E2M1 in the low exponent bits of FP16 is value x 2^-14, exact, so no multiply is needed; block
//          scales go onto FP32 partial sums. Activations are FP16: x normalised by a power of two per
//          token by the caller (x_scale undoes it), h by 2^10 (|h| <= 56). N = 8 columns hold `tokens x
//          G` blocks, column = token*G + (block mod G), B being zero elsewhere: one accumulator then
//          serves G blocks and each lane scales only its own blocks.
//
// Grid     one CTA a multiprocessor (SlabLayout::sms). FC1: 360 slab pairs per active expert, dealt
//          over the CTAs.
//          FC2: a CTA owns rows of every expert: whole slab pairs, and mostly 8 rows more, a slab that
//          shares a slab pair with that of another expert. Those with fewer rows have more of FC1
//          (Deal). A rank has some of FC1's slab pairs and of FC2's rows, and h goes to all ranks. No
//          partial sum leaves a CTA, no atomics; the order of every sum is fixed and depends
//          neither on the batch nor on the grid, so a token gets the same bits alone and in any batch.
// CTA      17 warps: 0 producer (bulk copies, global -> shared ring, a slab pair per stage, in thirds
//          of 30 blocks),
//          1 epilogue (sum over warps, bias, SwiGLU, combine), 2..16 consumers (6 of the 90 blocks of
//          every slab pair each). Of one token the producer finds the likeliest expert and the epilogue
//          chooses all four.
//
// Barriers full[third]: the copy has landed     done: the consumers have written their sums
//          empty: the epilogue has read sums and biases     sorted, planned: experts are chosen; the
//          items are there
// Ordering h travels through global memory without flags. The buffer holds kEmpty (two FP16 NaNs, which
//          __float2half_rn never returns) in every word; a word of two values is written once, by one
//          aligned 32-bit store, which nobody can see half of; a consumer reads the very words it needs
//          until none is kEmpty. Each word says for itself that it is there, so no order between words is
//          needed. The first read (cp.async.cg) and the polls (ld.volatile) go to L2, past L1.
//          The buffer is cleared by another launch, after its wait for its predecessors, whose last
//          reader of that buffer has ended; h is written after the wait for the launch that cleared.
//          A stage is copied into only behind `empty`, at which the epilogue arrives after `done`, at
//          which each consumer warp arrives behind __syncwarp: nobody still reads it.
// Resident All CTAs must be resident at once, since FC2 waits for the h of all. There is one a
//          multiprocessor, at most as many as the device (or MIG slice) has. The launch is cooperative: the
//          device starts all CTAs or none, whatever other streams do. Two plain launches on streams of
//          different priorities would share the device out between them, and both wait for ever. The next
//          kernel takes no room from a CTA that has not started: it is launched only when every CTA has
//          called launch_dependents. A poll that takes 9 s all the same gives up (patience.cuh).
//
// Bytes    13.27 MB per active expert. The weight stream never waits for h. Copies in flight are limited
//          (kInFlight): what is queued beyond about 48 KB a multiprocessor delays h and brings no
//          bandwidth.
// Shared   up to 222 KB (MoeDecodeShared), one CTA a multiprocessor. At most 96 registers a
//          thread: a quarter of a multiprocessor has five of the 17 warps.
// Floor    bytes / bandwidth: 12 us for one token on an H200; see docs/lab for what is
//          reached.
#include "backend/cuda/kernels/common/word_sender.cuh"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "backend/cuda/kernels/sm90/moe_decode_consume.cuh"
#include "backend/cuda/runtime/shared_limits.h"

namespace moesaic::cuda::sm90 {
namespace {

// ---- producer: one thread ----
template <class C>
struct SlabStream {
  MoeDecodeShared<C>& s;
  uint64_t policy;
  RingPlace<C::kStages> slot, landed;
  int landed_third = 0, issued = 0;

  __device__ __forceinline__ void third(int i, int bytes) {
    if (issued++ >= C::kInFlight) {
      mbarrier_wait(&s.stages[landed.index].full[landed_third], landed.phase);
      if (++landed_third == kThirds) landed_third = 0, landed.next();
    }
    mbarrier_arrive_expect_tx(&s.stages[slot.index].full[i], bytes);
  }
  __device__ __forceinline__ void copy(int i, int at, const uint8_t* src, int bytes) {
    cp_async_bulk(s.stages[slot.index].slab_pair + i * kSlabPairThird + at, src, bytes,
                  &s.stages[slot.index].full[i], policy);
  }
  // Waits until the next stage may be written; the first time there is nothing to wait for.
  __device__ __forceinline__ void wait_for_stage() const {
    if (issued >= C::kStages * kThirds) mbarrier_wait(&s.stages[slot.index].empty, slot.phase ^ 1);
  }
  __device__ __forceinline__ void slab_pair(const uint8_t* src) {
    wait_for_stage();
#pragma unroll
    for (int i = 0; i < kThirds; ++i) {
      third(i, kSlabPairThird);
      copy(i, 0, src + i * kSlabPairThird, kSlabPairThird);
    }
    slot.next();
  }
  __device__ __forceinline__ void slabs(const uint8_t* a, const uint8_t* b) {
    wait_for_stage();
#pragma unroll
    for (int i = 0; i < kThirds; ++i) {
      third(i, b ? kSlabPairThird : kSlabThird);
      copy(i, 0, a + i * kSlabThird, kSlabThird);
      if (b) copy(i, kSlabThird, b + i * kSlabThird, kSlabThird);
    }
    slot.next();
  }
};

template <class C>
__device__ void produce(MoeDecodeShared<C>& s, const Params& p, int experts) {
  SlabStream<C> stream{s, evict_first_policy()};
  const Deal<C> deal(p);
  const size_t fc1_bytes = deal.layout.fc1_bytes(), fc2_bytes = deal.layout.fc2_bytes();
  for (int i = 0; i < experts; ++i)
    for (int slab_pair = deal.fc1_place(i); slab_pair < deal.fc1_all(); slab_pair += deal.sms())
      stream.slab_pair(p.fc1 + s.expert_id[i] * fc1_bytes + (size_t)slab_pair * kSlabPairBytes);
  mbarrier_wait(&s.planned, 0);
  const int n = s.item_count;
  const size_t single = deal.tail_at();
  for (int i = experts; i < n; ++i) {
    const Item u = load_item(s, i);
    const uint8_t* a = p.fc2 + u.a * fc2_bytes;
    if (u.kind == 1)
      for (int k = 0; k < deal.fc2_slab_pairs(); ++k) stream.slab_pair(a + deal.slab_pair_at(k));
    else
      stream.slabs(a + single, u.b == kNone ? nullptr : p.fc2 + u.b * fc2_bytes + single);
  }
}

// The kernel's wait for its predecessor is in here: what the first copy needs besides the logits comes before
// it.
template <class C>
__device__ void produce_one(MoeDecodeShared<C>& s, const Params& p) {
  const Deal<C> deal(p);
  const size_t fc1_bytes = deal.layout.fc1_bytes(), fc2_bytes = deal.layout.fc2_bytes();
  const uint8_t* first = p.fc1 + (size_t)deal.fc1_place(0) * kSlabPairBytes;
  uint64_t policy = evict_first_policy();
  materialize(first, policy, p.logits, p.experts);
  wait_for_predecessor();
  int expert = likeliest(p);
  if (threadIdx.x > 0) return;
  SlabStream<C> stream{s, policy};
  if (deal.has_first()) stream.slab_pair(first + expert * fc1_bytes);
#pragma unroll 1
  for (int e = 0;;) {
    for (int slab_pair = deal.fc1_place(e) + (e == 0 ? deal.sms() : 0); slab_pair < deal.fc1_all();
         slab_pair += deal.sms())
      stream.slab_pair(p.fc1 + expert * fc1_bytes + (size_t)slab_pair * kSlabPairBytes);
    if (++e == kTopK) break;
    if (e == 1) mbarrier_wait(&s.sorted, 0);
    expert = s.pair_expert[e];
  }
  const size_t single = deal.tail_at();
  for (int step = 0; step < kFc2Steps; ++step) {
    const int e = step_expert(step);
    const uint8_t* a = p.fc2 + s.pair_expert[e] * fc2_bytes;
    if (!is_tail(step))
      for (int k = 0; k < deal.fc2_slab_pairs(); ++k) stream.slab_pair(a + deal.slab_pair_at(k));
    else if (deal.has_tail())
      stream.slabs(a + single, p.fc2 + s.pair_expert[e + 1] * fc2_bytes + single);
  }
}

// ---- epilogue: one warp. lane = row + 16 * (which half of the consumers it sums) ----
template <int Rows>
__device__ __forceinline__ float sum_consumers(const float (&red)[kConsumers][Rows][16], int column) {
  const int lane = threadIdx.x & 31, row = lane & 15, upper = lane >> 4;
  float v[8];
#pragma unroll
  for (int w = 0; w < 8; ++w) v[w] = w + upper * 8 < kConsumers ? red[w + upper * 8][column][row] : 0.0f;
  const float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  return sum + __shfl_xor_sync(~0u, sum, 16);
}

// Writes h of 16 rows (gate, up interleaved) as four words, `at` halves behind the first; for all ranks.
template <class C>
__device__ __forceinline__ void store_h(const Params& p, int at, float v) {
  const int lane = threadIdx.x & 31;
  const float up = __shfl_down_sync(~0u, v, 1);
  const float mine = swiglu(v, up) * kHScale;
  const float next = __shfl_down_sync(~0u, mine, 2);
  const half2 pair = __floats2half2_rn(mine, next);
  if (lane >= 16 || (lane & 3) != 0) return;
  const uint32_t word = *reinterpret_cast<const uint32_t*>(&pair);
  at += lane >> 1;
  if (C::kSms == 0) at += p.h_first;
  *reinterpret_cast<volatile uint32_t*>(p.h + at) = word;
  if constexpr (C::kSms == 0) {
#pragma unroll
    for (int i = 0; i < kMostRanks - 1; ++i)
      if (i < p.peers) *reinterpret_cast<volatile uint32_t*>(p.peer_h[i] + at) = word;
  }
}

template <class C>
__device__ __forceinline__ void store_out(const Params& p, int token, int row, float value) {
  p.out[(size_t)token * kHidden + row] = value;
  if (C::kSms == 0 && p.sender.peers > 0) send_word(p.sender, epoch_of(p.sender), token, row, value);
}

template <class C>
__device__ __forceinline__ float slab_pair_bias(const MoeDecodeShared<C>& s, int stage) {
  const int row = threadIdx.x & 15;
  const uint8_t* slab = s.stages[stage].slab_pair + (row < 8 ? 0 : kSlabThird) + kThirdBias;
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(slab)[row & 7]);
}
// No contraction with the sum that follows: the same bits for any batch.
__device__ __forceinline__ float fc2_value(float sum, float bias, float weight) {
  return __fmul_rn(fmaf(sum, kWeightScale / kHScale, bias), weight);
}

// Frees the stage: the epilogue has read all it needs.
template <class C>
__device__ __forceinline__ void release_stage(MoeDecodeShared<C>& s, RingPlace<C::kStages>& slot) {
  __syncwarp();
  if (arrives((threadIdx.x & 31) == 0)) mbarrier_arrive(&s.stages[slot.index].empty);
  slot.next();
}

template <class C>
__device__ void finish(MoeDecodeShared<C>& s, const Params& p) {
  const int lane = threadIdx.x & 31, row = lane & 15;
  const Deal<C> deal(p);
  const int rows = deal.fc2_rows();
  const auto own_rows = [&](const auto& body) {  // body(row of the CTA, row of FC2)
#pragma unroll 1
    for (int first = 0; first < C::kFc2Rows; first += 32)
      if (first + lane < rows) body(first + lane, deal.fc2_row(first + lane));
  };
  if (lane < p.tokens) s.x_scale[lane] = p.x_scale[lane];
  mbarrier_wait(&s.sorted, 0);
  plan_items(s, deal);
  if (arrives(lane == 0)) mbarrier_arrive(&s.planned);
  own_rows([&](int r, int at) {
    for (int m = 0; m < p.tokens; ++m) s.out[m][r] = p.residual[(size_t)m * kHidden + at];
  });
  __syncwarp();
  const int n = s.item_count;
  RingPlace<C::kStages> slot;
  for (int i = 0; i < n; ++i) {
    const Item u = load_item(s, i);
    int token = s.pair_token[u.pair0];
    float factor = u.kind == 0 ? kWeightScale * s.x_scale[token] : s.pair_weight[u.pair0];
    int h = u.pair0 * kHidden + u.first_slab_pair * 8;
    for (int k = 0; k < u.slab_pairs; ++k, h += deal.sms() * 8) {
      const Stage<C>& stage = s.stages[slot.index];
      mbarrier_wait(&s.stages[slot.index].done, slot.phase);
      const float bias = slab_pair_bias(s, slot.index);
      float sum = sum_consumers(stage.reduce, 0);
      if (u.columns == 1) release_stage(s, slot);
      for (int c = 0;;) {
        if (u.kind == 0) {
          store_h<C>(p, h + c * kHidden, fmaf(sum, factor, bias));
        } else {
          const float y = fc2_value(sum, bias, factor);
          float& out = s.out[token][u.kind == 1 ? (C::kOneSlabPair ? 0 : 16 * k) + row
                                                : 16 * deal.fc2_slab_pairs() + (row & 7)];
          if (lane < 16 && (u.kind == 1 || (row < 8) == (c < u.columns_a))) out = __fadd_rn(out, y);
          __syncwarp();
        }
        if (u.columns == 1 || ++c == u.columns) break;
        token = s.pair_token[u.pair0 + c];
        factor = u.kind == 0 ? kWeightScale * s.x_scale[token] : s.pair_weight[u.pair0 + c];
        sum = sum_consumers(stage.reduce, c);
      }
      if (u.columns > 1) {
        release_stage(s, slot);
        token = s.pair_token[u.pair0];
        factor = u.kind == 0 ? kWeightScale * s.x_scale[token] : s.pair_weight[u.pair0];
      }
    }
  }
  own_rows([&](int r, int at) {
    for (int m = 0; m < p.tokens; ++m) store_out<C>(p, m, at, s.out[m][r]);
  });
}

// FC2's next slab pair of the ring, of one token: its value of lane's row, times the weight of the row's
// expert.
template <class C>
__device__ __forceinline__ float next_fc2_value(MoeDecodeShared<C>& s, RingPlace<C::kStages>& slot,
                                                int expert, int column) {
  const float weight = s.pair_weight[expert + column];
  mbarrier_wait(&s.stages[slot.index].done, slot.phase);
  const float bias = slab_pair_bias(s, slot.index), sum = sum_consumers(s.stages[slot.index].reduce, column);
  release_stage(s, slot);
  return fc2_value(sum, bias, weight);
}
// Returns the value that is added i-th: the order is that of the experts' ids, and the likeliest, which is
// the first of v, has `below` before it.
template <class Values>
__device__ __forceinline__ float by_id(const Values& v, int i, int below) {
  return i < below ? v((i + 1) % kTopK) : i == below ? v(0) : v(i);
}

// FC2 of one token where each CTA has one slab pair: all in registers.
template <class C>
struct OneSlabPairSums {
  const Params& p;
  const Deal<C>& deal;
  const int lane = threadIdx.x & 31, row = lane & 15;
  const int at = deal.fc2_row(row), tail_at = deal.fc2_row(16 + row % 8);
  float out = p.residual[at], out_tail = deal.has_tail() ? p.residual[tail_at] : 0.0f;

  __device__ __forceinline__ void run(MoeDecodeShared<C>& s, RingPlace<C::kStages>& slot, int below) {
    float y[kTopK], y_tail[kTopK];  // [expert]
#pragma unroll
    for (int step = 0; step < kFc2Steps; ++step) {
      const bool tail = is_tail(step);
      if (tail && !deal.has_tail()) continue;
      const int e = step_expert(step);
      const float value = next_fc2_value(s, slot, e, tail ? row >> 3 : 0);
      if (tail) {
        y_tail[e] = value, y_tail[e + 1] = __shfl_down_sync(~0u, value, 8);
      } else {
        y[e] = value;
      }
    }
#pragma unroll
    for (int i = 0; i < kTopK; ++i) {
      out = __fadd_rn(out, by_id([&](int e) { return y[e]; }, i, below));
      if (deal.has_tail()) out_tail = __fadd_rn(out_tail, by_id([&](int e) { return y_tail[e]; }, i, below));
    }
    if (lane < 16) p.out[at] = out;
    if (lane < 8 && deal.has_tail()) p.out[tail_at] = out_tail;
  }
};
// The same of any number of slab pairs, through shared memory.
template <class C>
struct SlabPairsSums {
  const Params& p;
  const Deal<C>& deal;

  __device__ __forceinline__ void run(MoeDecodeShared<C>& s, RingPlace<C::kStages>& slot, int below) {
    const int lane = threadIdx.x & 31, row = lane & 15, slab_pairs = deal.fc2_slab_pairs();
#pragma unroll 1
    for (int step = 0; step < kFc2Steps; ++step) {
      const int e = step_expert(step);
      if (is_tail(step)) {
        if (!deal.has_tail()) continue;
        const float value = next_fc2_value(s, slot, e, row >> 3);
        if (lane < 16) s.out[e + (row >> 3)][16 * slab_pairs + row % 8] = value;
        continue;
      }
#pragma unroll 1
      for (int k = 0; k < slab_pairs; ++k) {
        const float value = next_fc2_value(s, slot, e, 0);
        if (lane < 16) s.out[e][16 * k + row] = value;
      }
    }
    __syncwarp();
    const int rows = deal.fc2_rows();
#pragma unroll 1
    for (int r = lane; r < rows; r += 32) {
      const int at = deal.fc2_row(r);
      float out = p.residual[at];
#pragma unroll
      for (int i = 0; i < kTopK; ++i)
        out = __fadd_rn(out, by_id([&](int e) { return s.out[e][r]; }, i, below));
      store_out<C>(p, 0, at, out);
    }
  }
};

template <class C>
__device__ void finish_one(MoeDecodeShared<C>& s, const Params& p) {
  const int lane = threadIdx.x & 31;
  const Deal<C> deal(p);
  std::conditional_t<C::kOneSlabPair, OneSlabPairSums<C>, SlabPairsSums<C>> sums{p, deal};
  const float scale = kWeightScale * p.x_scale[0];
  const int below = choose_one(s, p);
  if (arrives(lane == 0)) mbarrier_arrive(&s.sorted);
  RingPlace<C::kStages> slot;
  for (int e = 0; e < kTopK; ++e) {
    for (int slab_pair = deal.fc1_place(e); slab_pair < deal.fc1_all(); slab_pair += deal.sms()) {
      mbarrier_wait(&s.stages[slot.index].done, slot.phase);
      const float bias = slab_pair_bias(s, slot.index), sum = sum_consumers(s.stages[slot.index].reduce, 0);
      release_stage(s, slot);
      store_h<C>(p, e * kHidden + slab_pair * 8, fmaf(sum, scale, bias));
    }
  }
  weigh_experts(s);
  sums.run(s, slot, below);
}

template <class C>
__device__ void init_shared(MoeDecodeShared<C>& s) {
  if (threadIdx.x == 0) {
    mbarrier_init(&s.sorted, kWarpArrivals), mbarrier_init(&s.planned, kWarpArrivals);
    for (int i = 0; i < C::kStages; ++i) {
      for (int t = 0; t < kThirds; ++t) mbarrier_init(&s.stages[i].full[t], 1);
      mbarrier_init(&s.stages[i].done, kConsumers * kWarpArrivals);
      mbarrier_init(&s.stages[i].empty, kWarpArrivals);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
}

// Registers per thread: a quarter of a multiprocessor has room for this many where it has five of the 17
// warps.
constexpr int kMostRegisters = 96;
template <class C>
__global__ void __maxnreg__(kMostRegisters) moe_decode_kernel(const Params p) {
  extern __shared__ __align__(128) uint8_t raw[];
  MoeDecodeShared<C>& s = *reinterpret_cast<MoeDecodeShared<C>*>(raw);
  const int warp = threadIdx.x >> 5;
  init_shared(s);
  const bool sends = C::kSms == 0 && p.sender.peers > 0;
  if (!sends) launch_dependents();
  if (!C::kResident || warp > 0) wait_for_predecessor();
  if (sends && warp == 1) launch_dependents();
  if constexpr (C::kResident) {
    if (warp == 0) {
      produce_one(s, p);
    } else if (warp == 1) {
      finish_one(s, p);
    } else {
      consume_one(s, p, warp - 2);
    }
  } else {
    if (warp < p.tokens) choose_experts(s, p, warp);
    __syncthreads();
    if (warp == 0) {
      const int experts = sort_pairs(s, p);
      if (arrives(threadIdx.x == 0)) {
        mbarrier_arrive(&s.sorted);
        if (threadIdx.x == 0) produce(s, p, experts);
      }
    } else if (warp == 1) {
      finish(s, p);
    } else {
      consume(s, p, warp - 2);
    }
  }
}

// ---- launcher ----
template <int Sms>
struct Configs {
  using OneToken = Config<1, 5, 6, Sms>;
  using TwoTokens = Config<2, 5, 6, Sms>;
  using FourTokens = Config<4, 4, 8, Sms>;
  using EightTokens = Config<8, 4, 8, Sms>;
};

template <class C>
Status prepare() {
  static_assert(sizeof(MoeDecodeShared<C>) <= kHopperShared);
  static OncePerDevice prepared;
  return prepared.run([] {
    return set_attributes(moe_decode_kernel<C>,
                          {.max_shared = sizeof(MoeDecodeShared<C>), .prefer_shared = true});
  });
}
template <class Of>
Status prepare_all() {
  for (const auto prepare_config : {prepare<typename Of::OneToken>, prepare<typename Of::TwoTokens>,
                                    prepare<typename Of::FourTokens>, prepare<typename Of::EightTokens>}) {
    const Status status = prepare_config();
    if (!status.ok()) return status;
  }
  return {};
}

template <class C>
Status run(const Params& p, cudaStream_t stream) {
  return launch_together(moe_decode_kernel<C>, dim3(p.layout.sms), dim3(kThreads), sizeof(MoeDecodeShared<C>),
                         stream, p);
}
template <class Of>
Status run_any(const Params& p, cudaStream_t stream) {
  if (p.tokens == 1) return run<typename Of::OneToken>(p, stream);
  if (p.tokens == 2) return run<typename Of::TwoTokens>(p, stream);
  return p.tokens <= 4 ? run<typename Of::FourTokens>(p, stream) : run<typename Of::EightTokens>(p, stream);
}
// There is code for these numbers of CTAs and slabs alone.
bool is_full(const SlabLayout& layout) {
  return layout.sms == kFullSms && layout.fc1_all == kFc1SlabPairs && layout.fc2_all == kFc2Slabs;
}

}  // namespace

Status prepare_moe_decode(const SlabLayout& layout) {
  if (layout.sms < kFewestSms || layout.sms > kMostSms)
    return Status(StatusCode::kUnsupported, "cuda: the decode kernel of the experts needs 16 to 180 SMs");
  return is_full(layout) ? prepare_all<Configs<kFullSms>>() : prepare_all<Configs<0>>();
}

Status moe_decode(const MoeDecode& p, cudaStream_t stream) {
  if (p.tokens < 1 || p.tokens > 8)
    return Status(StatusCode::kInvalidArgument, "cuda: the decode kernel of the experts takes 1 to 8 tokens");
  return is_full(p.layout) ? run_any<Configs<kFullSms>>(p, stream) : run_any<Configs<0>>(p, stream);
}

}  // namespace moesaic::cuda::sm90
