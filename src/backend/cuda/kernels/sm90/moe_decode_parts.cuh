// Building blocks of the decode MoE operator: shared memory, the choice of experts, and the plan of work that
// the roles of moe_decode.cu follow.
#pragma once
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/top_k.cuh"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/ptx/mma.cuh"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "backend/cuda/kernels/sm90/slab.cuh"

namespace moesaic::cuda::sm90 {

using Params = MoeDecode;

// Several tokens: work on one expert or pair of experts, the same list for every CTA but for first_slab_pair
// and slab_pairs of FC1.
struct alignas(16) Item {
  uint8_t kind;  // 0: FC1, slab pairs first_slab_pair + k * sms of expert a; 1: FC2, this CTA's slab pairs of
                 // expert a; 2: its single slab of a (and b)
  uint8_t slab_pairs;
  uint8_t columns;    // 1..8
  uint8_t columns_a;  // columns of the expert of rows 0-7
  uint8_t pair0;      // sorted pair of column 0
  uint8_t wait_rows;  // rows from the first column's slot on that must have arrived
  uint8_t next_rows;  // rows to request now: pairs next_pair.. to slots next_slot..
  uint8_t next_pair;
  uint8_t next_slot;
  uint8_t first_slab_pair;
  uint8_t a, b;    // experts; b = kNone: rows 8-15 unused
  uint32_t slots;  // activation slot of each column, 4 bits each
};
constexpr uint8_t kNone = 0xff;
static_assert(sizeof(Item) == 16, "read as one vector");

// kSms: CTAs, where the code is for one number of them; 0: as the layout says. kStages: slab pairs in the
// ring. kInFlight: thirds being copied at a time. kColumns: most columns of a slab pair.
template <int Tokens, int Stages, int InFlight, int Sms>
struct Config {
  static constexpr int kSms = Sms;
  static constexpr int kFc2Rows = Sms > 0 ? slab_layout(Sms).most_rows() : most_fc2_rows();  // in a CTA
  static constexpr bool kOneSlabPair = Sms > 0 && slab_layout(Sms).fc2_slab_pairs
                                                      == Sms;  // one of FC2 for each CTA, no more
  static constexpr int kTokens = Tokens, kStages = Stages, kInFlight = InFlight;
  static constexpr int kPairs = Tokens * kTopK;
  static constexpr int kColumns = Tokens * 2 < 8 ? Tokens * 2 : 8;
  // One token: slots 0-3 h, 4 x. More: two buffers of kColumns rows, x in the first.
  static constexpr bool kResident = Tokens == 1;
  static constexpr int kSlots = kResident ? kTopK + 1 : 2 * kColumns;
  static constexpr int kXSlot = kResident ? kTopK : 0;
};

// One stage of the ring: a slab pair, the consumers' sums of it, and who may do what next.
template <class C>
struct alignas(128) Stage {
  uint8_t slab_pair[kSlabPairBytes];
  float reduce[kConsumers][C::kColumns][16];
  uint64_t full[kThirds];  // the third has landed
  uint64_t done;           // the consumers have written their sums
  uint64_t empty;          // the epilogue has read them
};

template <class C>
struct alignas(128) MoeDecodeShared {
  Stage<C> stages[C::kStages];
  uint8_t act[C::kSlots][kRowStride];
  float out[C::kResident && !C::kOneSlabPair ? kTopK : C::kTokens][C::kFc2Rows];  // one token: of each expert
  float x_scale[C::kTokens];
  Item items[C::kPairs * 3 + 1];  // one more is read, not used
  int top_id[C::kPairs];          // [tokens][kTopK]
  float top_weight[C::kPairs];
  float pair_weight[C::kPairs];  // sorted by expert and token
  int pair_expert[C::kPairs];
  int pair_token[C::kPairs];
  int expert_start[C::kPairs + 1];
  int expert_id[C::kPairs];
  int experts, item_count;
  uint64_t sorted, planned;
};

// ---- routing ----
constexpr int kMostExperts = 256;
// The experts of a token, by a warp.
template <class C>
__device__ __forceinline__ void choose_experts(MoeDecodeShared<C>& s, const Params& p, int token) {
  const int lane = threadIdx.x & 31, at = token * kTopK;
  with_keys<kMostExperts>(p.experts, [&](auto keys) {
    keys.load(p.logits + token * p.experts, p.experts, lane);
    keys.choose(kTopK, lane, s.top_id + at, s.top_weight + at);
  });
  __syncwarp();
}
// One token's likeliest, for lane 0.
__device__ __forceinline__ int likeliest(const Params& p) {
  const int lane = threadIdx.x & 31;
  int id = 0;
  with_keys<kMostExperts>(p.experts, [&](auto keys) {
    keys.load(p.logits, p.experts, lane);
    id = keys.pick(1, lane).id;
  });
  return id;
}
// One token's experts: the likeliest, whose copies need not wait until the others are known, then these in
// the order of their ids. Returns how many of them have a lower id than the likeliest. Their weights, which
// no copy waits for, are left to weigh_experts(): logits of the choices, best first, in top_weight, and each
// one's place in top_id.
template <class C>
__device__ __forceinline__ int choose_one(MoeDecodeShared<C>& s, const Params& p) {
  const int lane = threadIdx.x & 31;
  int below = 0;
  with_keys<kMostExperts>(p.experts, [&](auto keys) {
    keys.load(p.logits, p.experts, lane);
    const Choice choice = keys.pick(kTopK, lane);
    int rank = 0;
#pragma unroll
    for (int j = 0; j < kTopK; ++j) rank += __shfl_sync(~0u, choice.id, j) < choice.id;
    below = __shfl_sync(~0u, rank, 0);
    const int place = lane == 0 ? 0 : rank + (rank < below);
    if (lane < kTopK)
      s.pair_expert[place] = choice.id, s.top_id[lane] = place, s.top_weight[lane] = choice.logit;
  });
  __syncwarp();
  return below;
}
// By the warp that uses them.
template <class C>
__device__ __forceinline__ void weigh_experts(MoeDecodeShared<C>& s) {
  const int lane = threadIdx.x & 31;
  const float weight = choice_weight(lane < kTopK ? s.top_weight[lane] : 0.0f, kTopK, lane);
  if (lane < kTopK) s.pair_weight[s.top_id[lane]] = weight;
  __syncwarp();
}
// Producer warp: pairs sorted by (expert, token), active experts. Returns their number.
template <class C>
__device__ int sort_pairs(MoeDecodeShared<C>& s, const Params& p) {
  const int lane = threadIdx.x & 31;
  const int pairs = p.tokens * kTopK;
  int key = 0x7fffffff;
  float weight = 0;
  if (lane < pairs) {
    key = s.top_id[lane] * 32 + lane;
    weight = s.top_weight[lane];
  }
  int rank = 0;
#pragma unroll
  for (int j = 0; j < C::kPairs; ++j) rank += __shfl_sync(~0u, key, j) < key;
  if (lane < pairs) {
    s.pair_expert[rank] = key >> 5;
    s.pair_token[rank] = lane >> 2;
    s.pair_weight[rank] = weight;
  }
  __syncwarp();
  const int mine = lane < pairs ? s.pair_expert[lane] : -1;
  const int before = __shfl_up_sync(~0u, mine, 1);
  const bool head = lane < pairs && (lane == 0 || mine != before);
  const unsigned heads = __ballot_sync(~0u, head);
  const int experts = __popc(heads);
  if (head) {
    const int i = __popc(heads & ((1u << lane) - 1));
    s.expert_start[i] = lane;
    s.expert_id[i] = mine;
  }
  if (lane == 0) {
    s.expert_start[experts] = pairs;
    s.experts = experts;
  }
  __syncwarp();
  return experts;
}

// Which part of each expert this CTA computes: by SlabLayout, a constant in code for one number of CTAs.
template <class C>
struct Deal {
  SlabLayout layout;

  __device__ __forceinline__ explicit Deal(const Params& p)
      : layout(C::kSms > 0 ? slab_layout(C::kSms > 0 ? C::kSms : 1) : p.layout) {}
  // Some CTAs of a rank have no slab pair of an expert.
  __device__ __forceinline__ bool has_first() const { return C::kSms > 0 || fc1_place(0) < fc1_all(); }
  __device__ __forceinline__ int fc1_all() const { return layout.fc1_all; }
  __device__ __forceinline__ int sms() const { return layout.sms; }

  // FC1's slab pairs of the i-th expert are dealt in rounds of `sms`; this is the CTA's place in a round. The
  // last round is not full: its slab pairs go first to the CTAs with a slab less of FC2. Among CTAs that have
  // the same of FC2, the places rotate from expert to expert, so that all get as many.
  __device__ __forceinline__ int fc1_place(int i) const {
    const int cta = blockIdx.x, longer = layout.longer() > 0 ? layout.longer() : layout.fc2_singles();
    const int others = layout.sms - longer, left = layout.fc1_all % layout.sms;
    if (cta < longer) return others + turned(cta, left > others ? others - left : 0, i, longer);
    return turned(cta - longer, left < others ? -left : 0, i, others);
  }
  // `place` of `all`, moved by i steps of `by` > -all.
  __device__ __forceinline__ static int turned(int place, int by, int i, int all) {
    return by == 0 ? place : (place + (by + all) * i) % all;
  }
  // Slab pairs of an expert at such a place.
  __device__ __forceinline__ int fc1_slab_pairs(int place) const {
    return (layout.fc1_all - 1 - place + layout.sms) / layout.sms;
  }

  // FC2: whole slab pairs, and a single slab (the tail).
  __device__ __forceinline__ int fc2_slab_pairs() const {
    return C::kOneSlabPair ? 1 : layout.slab_pairs_of(blockIdx.x);
  }
  __device__ __forceinline__ int single() const { return layout.single_of(blockIdx.x); }
  __device__ __forceinline__ bool has_tail() const {
    return static_cast<unsigned>(single()) < static_cast<unsigned>(layout.fc2_singles());
  }
  __device__ __forceinline__ int fc2_rows() const { return fc2_slab_pairs() * 16 + (has_tail() ? 8 : 0); }
  __device__ __forceinline__ size_t slab_pair_at(int k) const {
    return static_cast<size_t>(blockIdx.x + (C::kOneSlabPair ? 0 : k * layout.sms)) * kSlabPairBytes;
  }
  __device__ __forceinline__ size_t tail_at() const {
    return static_cast<size_t>(layout.fc2_slab_pairs) * kSlabPairBytes +
           static_cast<size_t>(single()) * kSlabBytes;
  }
  // Row of FC2 of this CTA's row `row`, of which the tail's are the last.
  __device__ __forceinline__ int fc2_row(int row) const {
    const int slab_pairs = fc2_slab_pairs(), slab_pair = C::kOneSlabPair ? 0 : row / 16;
    return row < 16 * slab_pairs ? (blockIdx.x + slab_pair * layout.sms) * 16 + row - slab_pair * 16
                                 : layout.fc2_slab_pairs * 16 + single() * 8 + row - 16 * slab_pairs;
  }
};

template <class C>
__device__ __forceinline__ Item expert_item(const MoeDecodeShared<C>& s, int kind, int e) {
  Item u{};
  u.kind = kind;
  u.slab_pairs = 1;
  u.pair0 = s.expert_start[e];
  u.columns = u.columns_a = s.expert_start[e + 1] - s.expert_start[e];
  u.a = s.expert_id[e];
  u.b = kNone;
  return u;
}

// FC2 of several tokens: experts in pairs; lane = pair. A pair with more than 8 columns is split.
template <class C>
__device__ void plan_fc2(MoeDecodeShared<C>& s, const Deal<C>& deal, int experts) {
  const int lane = threadIdx.x & 31;
  const int a = 2 * lane, b = a + 1;
  const bool both = b < experts;
  const int rows = both ? s.expert_start[a + 2] - s.expert_start[a] : 0;
  const bool split = both && rows > 8;
  const int shift = __popc(__ballot_sync(~0u, split) & ((1u << lane) - 1));
  if (a < experts) {
    const bool tail = deal.has_tail();
    int group = lane + shift, at = experts + (tail ? 3 * lane + shift : 2 * lane);
    auto emit = [&](int first, int last) {
      const int slot = ((group + 1) & 1) * C::kColumns;
      Item u = expert_item(s, 1, first);
      if (!C::kOneSlabPair) u.slab_pairs = deal.fc2_slab_pairs();
      const int columns = s.expert_start[last + 1] - u.pair0;
      u.slots = slot * 0x11111111u + 0x76543210u;
      u.wait_rows = columns;
      s.items[at++] = u;
      if (last != first) {
        Item v = expert_item(s, 1, last);
        v.slab_pairs = u.slab_pairs;
        v.slots = (slot + u.columns) * 0x11111111u + 0x76543210u;
        s.items[at++] = v;
      }
      ++group;
      if (!tail) return;
      u.kind = 2, u.slab_pairs = 1;
      u.wait_rows = 0;
      u.columns = columns;
      if (last != first) u.b = s.expert_id[last];
      s.items[at++] = u;
    };
    emit(a, both && !split ? b : a);
    if (split) emit(b, b);
    if (b >= experts - 1) s.item_count = at;
  }
  __syncwarp();
  // The first item of a group, and the last of FC1, request the rows of the next group.
  const int n = s.item_count;
  for (int i = experts - 1 + lane; i < n; i += 32) {
    if (i >= experts && s.items[i].wait_rows == 0) continue;
    int j = i + 1;
    while (j < n && s.items[j].wait_rows == 0) ++j;
    if (j == n) continue;
    s.items[i].next_rows = s.items[j].wait_rows;
    s.items[i].next_pair = s.items[j].pair0;
    s.items[i].next_slot = s.items[j].slots & 15;
  }
}

// Epilogue warp: the table of items.
template <class C>
__device__ void plan_items(MoeDecodeShared<C>& s, const Deal<C>& deal) {
  const int lane = threadIdx.x & 31;
  const int experts = s.experts;
  if (lane < experts) {
    Item u = expert_item(s, 0, lane);
    u.first_slab_pair = deal.fc1_place(lane);
    u.slab_pairs = deal.fc1_slab_pairs(u.first_slab_pair);
    for (int c = 0; c < u.columns; ++c) u.slots |= s.pair_token[u.pair0 + c] << 4 * c;
    s.items[lane] = u;
  }
  __syncwarp();
  plan_fc2(s, deal, experts);
  __syncwarp();
}

template <class C>
__device__ __forceinline__ Item load_item(const MoeDecodeShared<C>& s, int i) {
  union {
    uint4 v;
    Item u;
  } r;
  r.v = *reinterpret_cast<const uint4*>(&s.items[i]);
  return r.u;
}

// One token. FC2 in the order e0 e1 e2 (0,1) (2,3) e3 (e0: the likeliest), so that the last expert's h has
// four units of time to arrive.
constexpr int kFc2Steps = 6;
__device__ __forceinline__ bool is_tail(int step) { return step == 3 || step == 4; }
__device__ __forceinline__ int step_expert(int step) {
  return step < 3 ? step : step == 5 ? 3 : 2 * step - 6;
}

}  // namespace moesaic::cuda::sm90
