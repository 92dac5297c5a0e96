// Samples a token from each row of logits, without sorting it.
//
// Maths    kernels/common/sample.h and core/batch.h say which token. Every question (the k likeliest, the
//          nucleus, where the random number falls) is the same one: which token is the last of the shortest
//          prefix, in an order of all tokens, that reaches a count or a mass. A token's key is its place in
//          that order. A histogram over the key's upper ten bits finds the bin in which the prefix ends, then
//          the next ten bits, until the bin has at most kListed tokens, which are compared each with each.
//          The first histogram answers all questions to one order; the tokens whose log-probabilities are
//          wanted have an order of their own.
// Shapes   logits [rows, vocab] F32, vocab up to 2^18; a mass is an integer in 2^-33 of the likeliest token's
//
// Grid     y: row; x: a cluster of 8 CTAs, each with an eighth of the row, or one CTA with all of it, where
//          there are no clusters (Group)
// CTA      1,024 threads, alike; thread t also has bin t of the histogram. Rank 0 lists tokens and writes
//          the result.
//
// Barriers __syncthreads() in a CTA, Group::sync() before a CTA reads another's shared memory, before a
//          histogram is cleared, and at the end: a CTA must not end while others read its memory.
// Ordering Histograms and lists are filled by atomics whose order varies. Sums of integers do not depend on
//          it, nor does a comparison of each with each; log_sum_exp() adds in a fixed order. The host reads
//          results after the step's event.
// Resident The CTAs of a cluster are scheduled together; clusters do not wait for each other.
//
// Bytes    a row as often as kernels/common/sample.h says, from L2 but for the first time. Shared memory:
//          17 KB.
// Floor    latency: each pass over the row takes a round of loads and two or three barriers of the cluster.
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/logit_row.cuh"
#include "backend/cuda/kernels/common/sample.h"
#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {
namespace {

using namespace logit_row;

constexpr int kListed = 256;

// How many tokens, and how likely they are together.
struct Measure {
  uint64_t count = 0, mass = 0;
};
__device__ Measure operator+(const Measure& a, const Measure& b) {
  return {a.count + b.count, a.mass + b.mass};
}

struct Listed {
  uint64_t key, mass;
};

struct SampleShared {
  uint32_t count[kBins], low[kBins], high[kBins];
  Measure warps[kWarps];
  uint64_t best[kWarps];
  uint64_t block_best;
  double sums[kWarps], block_sum;
  Listed list[kListed];  // used in the cluster's first CTA
  uint32_t listed;
  // Where the prefix ends: the bin, what lies before it and what it holds; or the token.
  int bin;
  Measure before, within;
  int32_t token;
};

// The largest logit of the row and its token, the lowest of equals, or kNotFinite.
template <class Group>
__device__ uint64_t find_best(const LogitRow& row, SampleShared& s) {
  uint64_t best = 0;
  row.each_logit<25>([&](float v, int id) {
    if (id < row.last)
      best = max(best, isfinite(v) ? static_cast<uint64_t>(ordered_key(v)) << 32 | ~static_cast<uint32_t>(id)
                                   : kNotFinite);
  });
  for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(0xFFFFFFFFu, best, offset));
  if (threadIdx.x % 32 == 0) s.best[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) best = max(best, s.best[w]);
    s.block_best = best;
  }
  Group::sync();
  for (int b = 0; b < Group::kCtas; ++b) best = max(best, *Group::of(&s.block_best, b));
  return best;
}

template <class Group>
__device__ void add(SampleShared& s, int bin, uint32_t count, uint32_t low, uint32_t high) {
  atomicAdd(&s.count[bin], count);
  Group::add(s, bin, low, high);
}
template <class Group>
__device__ void add(SampleShared& s, int bin, uint64_t mass) {
  add<Group>(s, bin, 1, mass & ((1u << kHalf) - 1), static_cast<uint32_t>(mass >> kHalf));
}

// Returns what the row has in the thread's bin, once every CTA has filled its histogram.
template <class Group>
__device__ Measure gather(SampleShared& s) {
  const int t = static_cast<int>(threadIdx.x);
  Group::sync();
  Measure sum;
#pragma unroll
  for (int b = 0; b < Group::kCtas; ++b) {
    const SampleShared& other = *Group::of(&s, b);
    sum = sum + Measure{other.count[t], Group::mass(other.low[t], other.high[t])};
  }
  return sum;
}

template <class Group>
__device__ void clear(SampleShared& s) {
  Group::sync();  // nobody reads the histogram before this one any more
  s.count[threadIdx.x] = s.low[threadIdx.x] = s.high[threadIdx.x] = 0;
  __syncthreads();
}

// By the first digit. Where a warp's tokens all fall into one bin they are added up before.
template <class Group>
__device__ Measure first_histogram(const LogitRow& row, SampleShared& s) {
  clear<Group>(s);
  row.each_logit<9>([&](float v, int id) {
    constexpr uint32_t kAll = 0xFFFFFFFFu;
    const double x = row.below(v);
    const int bin = x <= row.reach ? row.bin(x, id) : -1;
    const uint64_t mass = LogitRow::mass(x);
    if (!__all_sync(kAll, bin == __shfl_sync(kAll, bin, 0))) {
      if (bin >= 0) add<Group>(s, bin, mass);
    } else if (bin >= 0) {
      const uint32_t low = __reduce_add_sync(kAll, static_cast<uint32_t>(mass & ((1u << kHalf) - 1))),
                     high = __reduce_add_sync(kAll, static_cast<uint32_t>(mass >> kHalf));
      if (threadIdx.x % 32 == 0) add<Group>(s, bin, 32, low, high);
    }
  });
  return gather<Group>(s);
}

// By a later digit, of the tokens in `range` whose keys begin with `prefix`; shift: bits of a key behind the
// digit.
template <class Group>
__device__ Measure histogram(const LogitRow& row, const LogitRange& range, uint64_t prefix, int shift,
                             SampleShared& s) {
  clear<Group>(s);
  row.each(range, [&](float v, double x, int id) {
    const uint64_t key = row.key(v, x, id);
    if (key >> shift >> kDigit == prefix)
      add<Group>(s, static_cast<int>(key >> shift) & (kBins - 1), LogitRow::mass(x));
  });
  return gather<Group>(s);
}

// The sum over the threads up to this one.
__device__ Measure scan(Measure own, SampleShared& s) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto in_warp = [&](Measure m) {
    for (int offset = 1; offset < 32; offset *= 2) {
      const Measure left{__shfl_up_sync(0xFFFFFFFFu, m.count, offset),
                         __shfl_up_sync(0xFFFFFFFFu, m.mass, offset)};
      if (lane >= offset) m = m + left;
    }
    return m;
  };
  own = in_warp(own);
  __syncthreads();
  if (lane == 31) s.warps[warp] = own;
  __syncthreads();
  if (warp == 0) s.warps[lane] = in_warp(s.warps[lane]);
  __syncthreads();
  return warp == 0 ? own : s.warps[warp - 1] + own;
}

// A prefix is asked for by the tokens or by the mass that it must reach.
struct PrefixTarget {
  uint64_t Measure::*by;
  uint64_t value;
  __device__ bool ends(const Measure& before, const Measure& with) const {
    return before.*by < value && with.*by >= value;
  }
};

// A prefix that has been found: its mass and its last token.
struct Prefix {
  uint64_t mass;
  int32_t token;
};

// The tokens whose keys begin with `prefix`, after which `shift` bits follow.
struct Bin {
  uint64_t prefix = 0;
  int shift = kKeyBits - kDigit;
  LogitRange range;
  Measure before;  // weight and count of the tokens that come before
};

// The bin in which the shortest prefix ends that reaches the target, narrowed until it has at most `most`
// tokens. The whole row must reach the target. first: the row's first histogram.
template <class Group>
__device__ Bin find_bin(const LogitRow& row, Measure first, const PrefixTarget& target, int most,
                        SampleShared& s) {
  Bin bin;
  for (Measure own = first;; own = histogram<Group>(row, bin.range, bin.prefix, bin.shift, s)) {
    const Measure with = bin.before + scan(own, s);
    const Measure without{with.count - own.count, with.mass - own.mass};
    __syncthreads();
    if (target.ends(without, with)) s.bin = static_cast<int>(threadIdx.x), s.before = without, s.within = own;
    __syncthreads();
    bin.prefix = bin.prefix << kDigit | static_cast<uint64_t>(s.bin);
    if (bin.shift == kKeyBits - kDigit) bin.range = row.range(s.bin);
    bin.before = s.before;
    if (s.within.count <= most) return bin;
    bin.shift -= kDigit;
  }
}

// Lists the tokens in `range` whose keys are wanted, in the first CTA's memory, and returns how many there
// are: at most kListed.
template <class Group, typename Wants>
__device__ int list_tokens(const LogitRow& row, const LogitRange& range, Wants&& wants, SampleShared& s) {
  if (threadIdx.x == 0) s.listed = 0;
  Group::sync();
  SampleShared& list = *Group::of(&s, 0);
  row.each(range, [&](float v, double x, int id) {
    const uint64_t key = row.key(v, x, id);
    if (wants(key)) list.list[atomicAdd(&list.listed, 1u)] = {key, LogitRow::mass(x)};
  });
  Group::sync();
  return static_cast<int>(list.listed);
}

// The end of the prefix, by comparing a bin's tokens each with each, kTogether threads a token.
template <class Group>
__device__ Prefix last_of_listed(const LogitRow& row, const Bin& bin, const PrefixTarget& target,
                                 SampleShared& s) {
  constexpr int kTogether = kThreads / kListed;
  const int entry = static_cast<int>(threadIdx.x) / kTogether,
            part = static_cast<int>(threadIdx.x) % kTogether;
  const int count = list_tokens<Group>(
      row, bin.range, [&](uint64_t key) { return key >> bin.shift == bin.prefix; }, s);
  if (Group::rank() != 0 && part == 0 && entry < count) s.list[entry] = Group::of(&s, 0)->list[entry];
  __syncthreads();
  const Listed own = s.list[entry];
  Measure with;
#pragma unroll 4
  for (int i = part; i < count; i += kTogether) {
    if (s.list[i].key <= own.key) with = with + Measure{1, s.list[i].mass};
  }
  for (int offset = kTogether / 2; offset > 0; offset /= 2)
    with = with + Measure{__shfl_xor_sync(0xFFFFFFFFu, with.count, offset),
                          __shfl_xor_sync(0xFFFFFFFFu, with.mass, offset)};
  with = bin.before + with;
  if (part == 0 && entry < count && target.ends({with.count - 1, with.mass - own.mass}, with)) {
    s.within = with;
    s.token = LogitRow::id_of(own.key);
  }
  Group::sync();
  return {s.within.mass, s.token};
}

// The shortest prefix that reaches the target.
template <class Group>
__device__ Prefix find_prefix(const LogitRow& row, Measure first, const PrefixTarget& target,
                              SampleShared& s) {
  return last_of_listed<Group>(row, find_bin<Group>(row, first, target, kListed, s), target, s);
}

// The sum over the CTA's threads.
__device__ Measure total_of(Measure own, SampleShared& s) {
  scan(own, s);
  return s.warps[kWarps - 1];
}

template <class Group>
__device__ int32_t sample_token(LogitRow row, const DeviceSampling& params, SampleShared& s) {
  const bool nucleus = params.top_p < 1;
  row.temperature = params.temperature, row.per_temperature = 1 / params.temperature;
  row.order = nucleus || params.top_k > 0 ? Order::kLikelihood : Order::kIds;
  const double reach = fmin(-params.least, kReach);
  if (!nucleus) row.reach = reach;
  Measure bins = first_histogram<Group>(row, s);
  const Measure all = total_of(bins, s);
  uint64_t kept = all.mass;
  if (params.top_k > 0 && params.top_k < all.count)
    kept = find_prefix<Group>(row, bins, {&Measure::count, static_cast<uint64_t>(params.top_k)}, s).mass;
  if (nucleus) {
    const auto share = static_cast<uint64_t>(ceil(params.top_p * static_cast<double>(kept)));
    kept = find_prefix<Group>(row, bins, {&Measure::mass, max(share, uint64_t{1})}, s).mass;
    if (-params.least < kFar) {
      row.reach = reach;
      bins = first_histogram<Group>(row, s);
      kept = min(kept, total_of(bins, s).mass);
    }
  }
  const auto place = static_cast<uint64_t>(params.uniform * static_cast<double>(kept));
  return find_prefix<Group>(row, bins, {&Measure::mass, place + 1}, s).token;
}

// The logarithm of the sum of e to the power of every logit, added in an order that nothing changes.
template <class Group>
__device__ double log_sum_exp(const LogitRow& row, SampleShared& s) {
  double sum = 0;
  row.each_logit<5>([&](float v, int) { sum += exp(static_cast<double>(v) - row.top); });
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) sum += s.sums[w];
    s.block_sum = sum;
  }
  Group::sync();
  sum = 0;
  for (int b = 0; b < Group::kCtas; ++b) sum += *Group::of(&s.block_sum, b);
  return row.top + log(sum);
}

// The n likeliest; n: 1 to as many tokens as the row has.
template <class Group>
__device__ void find_likeliest(LogitRow row, int n, SampleResult::Entry* top, SampleShared& s) {
  row.order = Order::kLogits, row.reach = kAnywhere;
  const Measure bins = first_histogram<Group>(row, s);
  Bin bin = find_bin<Group>(row, bins, {&Measure::count, static_cast<uint64_t>(n)}, kListed - n, s);
  bin.range.most = INFINITY;
  const int count = list_tokens<Group>(
      row, bin.range, [&](uint64_t key) { return key >> bin.shift <= bin.prefix; }, s);
  const int entry = static_cast<int>(threadIdx.x);
  if (Group::rank() == 0 && entry < count) {
    const uint64_t own = s.list[entry].key;
    int place = 0;
    for (int i = 0; i < count; ++i) place += s.list[i].key < own ? 1 : 0;
    if (place < n) top[place] = {LogitRow::id_of(own), LogitRow::logit_of(own)};
  }
}

// Not inlined: rows that do not ask would pay with 80 bytes of spilled registers for 20.
template <class Group>
__device__ __noinline__ void find_logprobs(LogitRow row, int32_t token, int n, SampleResult& result,
                                           SampleShared& s) {
  const double normalizer = log_sum_exp<Group>(row, s);
  if (Group::rank() == 0 && threadIdx.x == 0)
    result.logit = row.logits[token], result.normalizer = normalizer;
  if (n > 0) find_likeliest<Group>(row, n, result.top, s);
}

// A token's logit before edit_logits(); the token is allowed.
__device__ float logit_before(const RowEdits& edits, const RowEdits::Row& row, const float* logits,
                              int32_t token) {
  const EditedToken* const tokens = edits.tokens + row.first;
  int first = 0, last = row.count;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (tokens[middle].edit.token < token) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first < row.count && tokens[first].edit.token == token ? tokens[first].logit : logits[token];
}

template <class Group>
__device__ void sample_row(const SampleRows& p, SampleShared& s) {
  constexpr int kTogether = Group::kCtas * 32;
  const RowEdits::Row* edit = p.edits.count > 0 ? &p.edits.rows[blockIdx.y] : nullptr;
  const int index = edit != nullptr ? edit->row : static_cast<int>(blockIdx.y),
            part = (p.vocab + kTogether - 1) / kTogether * 32;
  const int rank = Group::rank();
  LogitRow row{.logits = p.logits + static_cast<int64_t>(index) * p.vocab,
               .first = rank * part,
               .last = min(p.vocab, (rank + 1) * part)};
  wait_for_predecessor();
  const uint64_t best = find_best<Group>(row, s);
  int32_t token = best == kNotFinite ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(best));
  SampleResult& result = p.results[*p.result_buffer * p.stride + index];
  int32_t likeliest = -1;
  if (token >= 0) {
    const DeviceSampling& params = edit != nullptr ? edit->sampling : p.sampling[index];
    row.top = from_ordered_key(static_cast<uint32_t>(best >> 32));
    if (params.temperature > 0) token = sample_token<Group>(row, params, s);
    if (params.logprobs >= 0 && edit == nullptr) {
      likeliest = min(params.logprobs, p.vocab);
      find_logprobs<Group>(row, token, likeliest, result, s);
    }
  }
  if (rank == 0 && threadIdx.x == 0) {
    p.sampled_tokens[index] = result.token = token;
    if (edit == nullptr) {
      result.fault = *p.fault, result.likeliest = likeliest;
    } else if (token >= 0 && edit->sampling.logprobs >= 0) {
      result.logit = logit_before(p.edits, *edit, row.logits, token);
    }
  }
  Group::sync();  // the others may still be reading this CTA's memory
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const SampleRows p) {
  __shared__ SampleShared s;
  sample_row<OneCta>(p, s);
}
#ifdef __CUDACC__
__global__ void MOESAIC_SAMPLE_CLUSTER __launch_bounds__(kThreads)
    sample_in_cluster_kernel(const SampleRows p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ SampleShared s;
  sample_row<Cluster>(p, s);
#endif
}
#endif

// No two threads change the same logit: the first loop changes allowed tokens alone, the second one all
// others.
__global__ void edit_logits_kernel(float* logits, int vocab, const RowEdits edits) {
  constexpr float kLeast = -3.402823466e38f;
  const RowEdits::Row row = edits.rows[blockIdx.y];
  float* const own = logits + static_cast<int64_t>(row.row) * vocab;
  const uint32_t* const mask = row.allowed < 0 ? nullptr : edits.allowed + row.allowed;
  const auto allowed = [&](int token) {
    return mask == nullptr || (mask[token / 32] >> (token % 32) & 1u) != 0;
  };
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
            stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = first; i < row.count; i += stride) {
    EditedToken& t = edits.tokens[row.first + i];
    const float v = own[t.edit.token];
    t.logit = v;
    if (isfinite(v) && allowed(t.edit.token)) own[t.edit.token] = edited(v, t.edit);
  }
  if (mask == nullptr) return;
  for (int i = first; i < vocab; i += stride) {
    if (!allowed(i) && isfinite(own[i])) own[i] = kLeast;
  }
}

__global__ void step_inputs_kernel(const StepInputs p) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < p.count; i += stride) {
    const int row = i - p.tokens;
    const int source = row >= 0 && row < p.rows ? p.packed[p.token_sources + row] : -1;
    // A row whose token could not be sampled ends once the host has its result.
    p.inputs[i] = source < 0 ? p.packed[i] : max(p.sampled_tokens[source], 0);
  }
}

}  // namespace

Status copy_step_inputs(const StepInputs& p, cudaStream_t stream) {
  constexpr int kInputThreads = 256, kMostBlocks = 64;
  return launch_alone(step_inputs_kernel,
                      dim3(min(kMostBlocks, (p.count + kInputThreads - 1) / kInputThreads)),
                      dim3(kInputThreads), 0, stream, p);
}

Status edit_logits(float* logits, int vocab, const RowEdits& edits, cudaStream_t stream) {
  constexpr int kEditThreads = 256, kBlocks = 16;
  return launch_alone(edit_logits_kernel, dim3(kBlocks, edits.count), dim3(kEditThreads), 0, stream, logits,
                      vocab, edits);
}

Status sample(const SampleRows& p, [[maybe_unused]] int ctas, cudaStream_t stream) {
  const int rows = p.edits.count > 0 ? p.edits.count : p.rows;
#ifdef __CUDACC__
  if (ctas > 1)
    return launch(sample_in_cluster_kernel, dim3(kSampleCluster, rows), dim3(kThreads), 0, stream, p);
#endif
  return launch(sample_kernel, dim3(1, rows), dim3(kThreads), 0, stream, p);
}

}  // namespace moesaic::cuda
