// The experts of 1 to 8 tokens in one launch, on the host: all CTAs at once, since each waits for
// what the others leave of the first product. Also for devices with fewer multiprocessors than an H200.
#include "backend/cuda/kernels/sm90/moe_decode.cu"
#include "backend/cuda/testing/host_simulator/experts.h"
#include "moe/work_list.h"

namespace moesaic::cuda::sm90 {
namespace {

using Full = Configs<kFullSms>;
using Any = Configs<0>;
alignas(128) thread_local uint8_t raw[std::max(sizeof(MoeDecodeShared<Full::EightTokens>),
                                               sizeof(MoeDecodeShared<Any::EightTokens>))];  // the kernel's

constexpr int kMostTokens = 8;

// The operator's input, of which a batch takes the first tokens, and its result.
struct Tokens {
  std::vector<__half> x = std::vector<__half>(kMostTokens * kHidden);
  std::vector<float> scale, logits, residual = std::vector<float>(kMostTokens * kHidden);

  Tokens() {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    for (__half& v : x) v = __float2half_rn(normal(rng));
    for (float& v : residual) v = normal(rng);
    for (int i = 0; i < kMostTokens; ++i) scale.push_back(i % 2 == 0 ? 1.0f : 0.5f);
    for (int i = 0; i < kMostTokens * kExperts; ++i) logits.push_back(2 * normal(rng));
  }

  // ctas: that come; the kernel's are as many as multiprocessors.
  template <class C>
  std::vector<float> run(int tokens, int sms = kFullSms, int ctas = 0, int wanted_fault = 0) const {
    const auto empty = __half(__half_raw{.x = 0xFFFF});
    std::vector<__half> h(static_cast<size_t>(tokens) * kTopK * kHidden, empty), cleared(h.size());
    std::vector<float> out(static_cast<size_t>(tokens) * kHidden);
    int fault = 0;
    const Params p{.fc1 = experts(sms).fc1.data(),
                   .fc2 = experts(sms).fc2.data(),
                   .x = x.data(),
                   .x_scale = scale.data(),
                   .logits = logits.data(),
                   .experts = kExperts,
                   .residual = residual.data(),
                   .out = out.data(),
                   .h = h.data(),
                   .h_clear = cleared.data(),
                   .clear_vectors = static_cast<int>(cleared.size() / 8),
                   .tokens = tokens,
                   .layout = slab_layout(sms),
                   .fault = &fault};
    EXPECT_TRUE(on_host::run_at_once(ctas > 0 ? ctas : sms, kThreads, {raw, sizeof(MoeDecodeShared<C>)},
                                     [&] { moe_decode_kernel<C>(p); }));
    EXPECT_EQ(fault, wanted_fault);
    if (wanted_fault != 0) return out;
    EXPECT_TRUE(std::ranges::all_of(cleared, [](__half v) { return __half_raw(v).x == 0xFFFF; }));
    return out;
  }

  // By ranks of so many multiprocessors each, at once.
  template <class C>
  std::vector<float> run_ranks(int ranks, int tokens, int sms) const {
    struct Rank {
      Experts experts;
      std::vector<__half> h, cleared;
      int fault = 0;
    };
    const auto empty = __half(__half_raw{.x = 0xFFFF});
    const std::vector<__half> unwritten(static_cast<size_t>(tokens) * kTopK * kHidden, empty);
    std::vector<float> out(static_cast<size_t>(tokens) * kHidden);
    std::vector<Rank> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back({Experts(sms, {rank, ranks}), unwritten, unwritten});
    std::vector<Params> params;
    for (Rank& rank : all) {
      const int64_t first = rank.experts.rows.first;
      Params& p = params.emplace_back(Params{.fc1 = rank.experts.fc1.data(),
                                             .fc2 = rank.experts.fc2.data(),
                                             .x = x.data(),
                                             .x_scale = scale.data(),
                                             .logits = logits.data(),
                                             .experts = kExperts,
                                             .residual = residual.data() + first,
                                             .out = out.data() + first,
                                             .h = rank.h.data(),
                                             .h_clear = rank.cleared.data(),
                                             .clear_vectors = static_cast<int>(rank.cleared.size() / 8),
                                             .tokens = tokens,
                                             .layout = rank.experts.layout,
                                             .h_first = static_cast<int>(first),
                                             .fault = &rank.fault});
      for (Rank& other : all)
        if (&other != &rank) p.peer_h[p.peers++] = other.h.data();
    }
    EXPECT_TRUE(on_host::run_at_once(
        sms, kThreads, {raw, sizeof(MoeDecodeShared<C>)}, [&] { moe_decode_kernel<C>(params[blockIdx.z]); },
        1, ranks));
    for (const Rank& rank : all) EXPECT_EQ(rank.fault, 0);
    return out;
  }

  // As the reference backend has it, h in F32.
  std::vector<double> expected(int token) const {
    std::vector<float> in(kHidden);
    for (int i = 0; i < kHidden; ++i) in[i] = __half2float(x[token * kHidden + i]) * scale[token];
    int32_t ids[kTopK];
    float weights[kTopK];
    route_row(std::span(logits).subspan(token * kExperts, kExperts), kTopK, ids, weights);
    std::vector<double> sum(&residual[token * kHidden], &residual[token * kHidden] + kHidden);
    for (int k = 0; k < kTopK; ++k) {
      const std::vector<float> y = experts().times(kDownPart, ids[k], experts().hidden(ids[k], in));
      for (int row = 0; row < kHidden; ++row) sum[row] += double{weights[k]} * y[row];
    }
    return sum;
  }
};

const Tokens kTokens;

// Eight tokens on the full device.
const std::vector<float>& full_device() {
  static const std::vector<float> result = kTokens.run<Full::EightTokens>(8);
  return result;
}

bool begins_like_full_device(const std::vector<float>& got) {
  return std::equal(got.begin(), got.end(), full_device().begin());
}

TEST(DecodeExperts, GiveTheSameBitsInAnyBatch) {
  ASSERT_EQ(experts().fault, 0);
  const std::vector<float>& eight = full_device();
  RelativeError error;
  for (const int token : {0, 1, 2, 5, 7}) {
    const std::vector<double> want = kTokens.expected(token);
    for (int i = 0; i < kHidden; ++i) {
      const float residual = kTokens.residual[token * kHidden + i];
      error.add(eight[token * kHidden + i] - residual, want[i] - residual);
    }
  }
  EXPECT_LT(error.value(), 5e-4);  // h is rounded to F16
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Full::OneToken>(1)));
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Full::TwoTokens>(2)));
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Full::FourTokens>(3)));
}

// The device has no room for a CTA: the others do not wait for ever, and say so. Its part of h is missing,
// and with it every row's sum.
TEST(DecodeExperts, GiveUpWhereACtaDoesNotCome) {
  EXPECT_TRUE(std::isnan(kTokens.run<Full::OneToken>(1, kFullSms, kFullSms - 1, kGaveUp)[0]));
  EXPECT_TRUE(std::isnan(kTokens.run<Full::TwoTokens>(2, kFullSms, kFullSms - 1, kGaveUp)[0]));
}

// Sums do not depend on who owns a row: the bits are those of the full device, which are compared above.
class DecodeExpertsOnSms : public testing::TestWithParam<int> {};
TEST_P(DecodeExpertsOnSms, GiveTheBitsOfTheFullDevice) {
  const int sms = GetParam();
  ASSERT_EQ(experts(sms).fault, 0);
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Any::OneToken>(1, sms)));
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Any::TwoTokens>(2, sms)));
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Any::FourTokens>(3, sms)));
  EXPECT_TRUE(begins_like_full_device(kTokens.run<Any::EightTokens>(8, sms)));
}
// An H100 PCIe, an H20, and a slice of a device.
INSTANTIATE_TEST_SUITE_P(Sms, DecodeExpertsOnSms, testing::Values(114, 78, 17),
                         testing::PrintToStringParamName());

// A rank has some of the rows, and its CTAs may have none of an expert.
TEST(DecodeExperts, OfRanksGiveTheBitsOfOne) {
  EXPECT_TRUE(begins_like_full_device(kTokens.run_ranks<Any::OneToken>(8, 1, 50)));
  EXPECT_TRUE(begins_like_full_device(kTokens.run_ranks<Any::EightTokens>(2, 8, 17)));
}

// Every row of FC2 has one owner, and nobody has two slabs more than another.
class DealtSlabs : public testing::TestWithParam<int> {};
TEST_P(DealtSlabs, HaveOneOwnerEach) {
  for (int sms = kFewestSms; sms <= kMostSms; ++sms) {
    const int slabs = GetParam();
    const SlabLayout layout = slab_layout(sms, slabs, slabs);
    std::vector<int> slab_pair_owners(layout.fc2_slab_pairs), single_owners(layout.fc2_singles());
    int least = kHidden, most = 0;
    for (int cta = 0; cta < sms; ++cta) {
      const int single = layout.single_of(cta), slab_pairs = layout.slab_pairs_of(cta);
      const bool tail = single >= 0 && single < layout.fc2_singles();
      for (int k = 0; k < slab_pairs; ++k) ++slab_pair_owners.at(cta + k * sms);
      if (tail) ++single_owners.at(single);
      const int rows = slab_pairs * 16 + (tail ? 8 : 0);
      least = std::min(least, rows), most = std::max(most, rows);
    }
    EXPECT_TRUE(std::ranges::all_of(slab_pair_owners, [](int n) { return n == 1; })) << sms;
    EXPECT_TRUE(std::ranges::all_of(single_owners, [](int n) { return n == 1; })) << sms;
    EXPECT_LE(most - least, 8) << sms;
    EXPECT_EQ(most, layout.most_rows()) << sms;
  }
}
// One to eight ranks.
INSTANTIATE_TEST_SUITE_P(Slabs, DealtSlabs, testing::Values(360, 180, 120, 92, 88, 72, 48, 44),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace moesaic::cuda::sm90
