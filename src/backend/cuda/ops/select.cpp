#include "backend/cuda/ops/select.h"

#include <algorithm>

#include "backend/cuda/kernels/common/gemm_fp8.h"
#include "backend/cuda/kernels/common/sample.h"
#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/ops/attention.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr LinearConfig dense_decode(std::string_view name, int least, int most, int normed) {
  return {.name = name,
          .kernel = LinearKernel::kDenseDecode,
          .least_tokens = least,
          .most_tokens = most,
          .takes = in_wide_tiles,
          .needs = kFewRowKernels,
          .invariant = false,
          .most_normed_tokens = normed,
          .most_normed_cols = normed > 0 ? sm90::kMostNormedCols : 0,
          .fits = sm90::dense_decode_fits};
}

// dense_decode and wgmma each add in another order than mma.sync's kernels, which all add in one.
constexpr LinearConfig kLinearConfigs[] = {
    {.name = "block-scaled",
     .kernel = LinearKernel::kBlockScaled,
     .takes = in_quads,
     .needs = kBulkCopies,
     .most_normed_tokens = 1 << 30,
     .most_normed_cols = 1 << 30,
     .adds_deferred = true},
    dense_decode("dense_decode 8", 1, 8, 8),
    dense_decode("dense_decode 16", 9, 16, 0),
    dense_decode("dense_decode 32", 17, 32, 0),
    {.name = "wgmma",
     .kernel = LinearKernel::kWgmma,
     .least_tokens = 9,
     .takes = in_wide_tiles,
     .needs = kWgmma,
     .invariant = false,
     .cols_multiple = 64,
     .least_cols = 448},
    {.name = "mma", .kernel = LinearKernel::kMma, .takes = in_weight_tiles},
};

// cost: a CTA's time, in times of one with a tile of 32 tokens, as gpt-oss-20b's projection has it on an
// H200; BF16 and MXFP8 differ by up to 15% (docs/lab/2026-11-29-dense-tiles.md).
struct MmaTile {
  int tokens, weight_tiles;
  double cost;
};
constexpr MmaTile kMmaTiles[] = {{128, 4, 4.9}, {64, 4, 3.6}, {32, 1, 1.0}};
constexpr int kSmallMmaTiles[] = {8, 16, 32};

constexpr AttentionConfig kAttentionConfigs[] = {
    {.name = "attention_decode",
     .kernel = AttentionKernel::kDecode,
     .decode = true,
     .needs = kFewRowKernels,
     .invariant = false},
    {.name = "attention_prefill", .kernel = AttentionKernel::kPrefill, .needs = kWgmma},
    {.name = "attention_portable", .kernel = AttentionKernel::kPortable, .portable = true},
};

constexpr ExpertsConfig kExpertsConfigs[] = {
    {.name = "quads", .layout = ExpertsLayout::kQuads, .path = MoePath::kW4A8, .needs = kBulkCopies},
    {.name = "slabs",
     .layout = ExpertsLayout::kSlabs,
     .needs = kFewRowKernels,
     .invariant = false,
     .gpt_oss_swiglu = true,
     .gpt_oss_sizes = true},
    {.name = "slabs, rows in FP8",
     .layout = ExpertsLayout::kSlabs,
     .path = MoePath::kFp8,
     .needs = kWgmma,
     .invariant = false,
     .gpt_oss_swiglu = true,
     .gpt_oss_sizes = true},
    // Portable targets count as invariant; what asks for it beside this path is refused when it is opened.
    {.name = "weight tiles, rows in FP8",
     .layout = ExpertsLayout::kWeightTiles,
     .path = MoePath::kFp8,
     .needs = kFp8Mma,
     .portable = true,
     .gpt_oss_swiglu = true,
     .cols_multiple = kFp8Columns},
    {.name = "weight tiles", .layout = ExpertsLayout::kWeightTiles, .mxfp4_only = false, .any_path = true},
};

constexpr RouterConfig kRouterConfigs[] = {
    {.name = "score",
     .kernel = RouterKernel::kScore,
     .slabs_only = true,
     .most_rows = kMostScoredRows,
     .most_hidden = kMostScoredHidden,
     .most_logits = kMostScoredLogits},
    {.name = "choose",
     .kernel = RouterKernel::kChoose,
     .chooses = true,
     .most_rows = 8,
     .most_hidden = kMostChosenHidden,
     .most_experts = 128,
     .most_top_k = 4},
    {.name = "norm, router", .kernel = RouterKernel::kNormRouter},
};

constexpr SampleConfig kSampleConfigs[] = {
    {.name = "sample in clusters",
     .ctas = kSampleCluster,
     .needs = kClusters,
     .most_vocab = kMostSampledVocab},
    {.name = "sample", .most_vocab = kMostSampledVocab},
};

bool within(int value, int most) { return most == 0 || value <= most; }

bool takes(const LinearConfig& c, const LinearShape& s, const Target& target) {
  return s.tokens >= c.least_tokens && within(s.tokens, c.most_tokens) && c.takes(s.kind) &&
         target.features.have(c.needs) && (c.invariant || !target.batch_invariant) &&
         s.cols % c.cols_multiple == 0 && s.cols >= c.least_cols &&
         (c.fits == nullptr || c.fits(s.cols, s.tokens));
}
bool fuses(const LinearConfig& c, const LinearShape& s) {
  return s.norm != InputNorm::kNone && (s.norm == InputNorm::kNorm || c.adds_deferred) &&
         s.tokens <= c.most_normed_tokens && s.cols <= c.most_normed_cols;
}
bool takes(const AttentionConfig& c, const AttentionShape& s, const Target& target) {
  return c.decode == s.decode && target.features.have(c.needs) && (c.portable || !target.portable) &&
         (c.invariant || !target.batch_invariant);
}
bool takes(const ExpertsConfig& c, const ExpertsShape& s, const Target& target) {
  return target.features.have(c.needs) && (s.mxfp4 || !c.mxfp4_only) &&
         (c.any_path || c.path == target.moe_path ||
          (c.layout == ExpertsLayout::kQuads && is_w4a8(target.moe_path))) &&
         (!c.portable || target.portable) && (c.invariant || !target.batch_invariant) &&
         (!c.gpt_oss_swiglu || (s.swiglu_alpha == 1.702 && s.swiglu_limit == 7.0)) &&
         (!c.gpt_oss_sizes || slabs_take(s.sizes)) && s.sizes.hidden % c.cols_multiple == 0 &&
         s.sizes.intermediate % c.cols_multiple == 0;
}
bool takes(const RouterConfig& c, const RouterShape& s) {
  return (!c.slabs_only || s.slabs) && !(c.chooses && s.scores_only) && within(s.rows, c.most_rows) &&
         within(s.hidden, c.most_hidden) && within(s.experts, c.most_experts) &&
         within(s.top_k, c.most_top_k) && within(s.rows * s.experts, c.most_logits);
}
std::string device_of(const Target& t) {
  return fmt::format("compute capability {}.{}", t.features.major, t.features.minor);
}

}  // namespace

int mma_tile(int64_t rows, int tokens, int multiprocessors) {
  for (const int tile : kSmallMmaTiles) {
    if (tokens <= tile) return tile;
  }
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto cost = [&](const MmaTile& tile) {
    const int64_t ctas = ceil_div(weight_tiles_of(rows), tile.weight_tiles) * ceil_div(tokens, tile.tokens);
    return tile.cost * static_cast<double>(ceil_div(ctas, std::max(multiprocessors, 1)));
  };
  return std::ranges::min(kMmaTiles, {}, cost).tokens;
}

Target target_of(const Features& features, const BackendOptions& options) {
  const bool portable = options.portable || !features.have(kFewRowKernels);
  Features some = features;
  if (!options.wgmma) some.has &= ~unsigned{kWgmma};
  return {.features = some,
          .portable = portable,
          .batch_invariant = options.batch_invariant || portable,
          .moe_path = options.moe_path};
}

Status check_moe_path(const Features& features, const BackendOptions& options, std::string_view name) {
  const auto lacks = [&](std::string_view path, std::string_view capability) {
    return error(StatusCode::kUnsupported,
                 "device cuda:{}: --moe-path {} needs compute capability {} and code for it, {} is {}.{}; "
                 "leave it out",
                 options.device, path, capability, name, features.major, features.minor);
  };
  if (is_w4a8(options.moe_path) && !features.have(kBulkCopies))
    return lacks(options.moe_path == MoePath::kW4A8 ? "w4a8" : "w4a8x2", "9.0 or later");
  if (options.moe_path != MoePath::kFp8) return {};
  if (!features.have(kFp8Mma) || features.have(kBlockScaledMma))
    return lacks("fp8", "8.9 (Ada) or 9.0 (Hopper)");
  if (options.batch_invariant)
    return error(StatusCode::kUnsupported,
                 "--moe-path fp8 takes few rows in F16 and many in FP8; leave it or --batch-invariant out");
  const Target target = target_of(features, options);
  if (!target.portable && !target.features.have(kWgmma))
    return error(
        StatusCode::kUnsupported,
        "device cuda:{}: --moe-path fp8 needs wgmma or --portable; leave it or --no-wgmma out, or add "
        "--portable",
        options.device);
  return {};
}

std::span<const LinearConfig> linear_configs() { return kLinearConfigs; }

Result<LinearChoice> select(const LinearShape& s, const Target& target) {
  for (const LinearConfig& c : kLinearConfigs) {
    if (takes(c, s, target)) return LinearChoice{&c, fuses(c, s)};
  }
  return error(StatusCode::kUnsupported,
               "cuda: linear has no kernel for {} weights{}, {} x {}, {} tokens on {}", kind_name(s.kind),
               in_quads(s.kind) ? " in quads" : "", s.rows, s.cols, s.tokens, device_of(target));
}

Result<const AttentionConfig*> select(const AttentionShape& s, const Target& target) {
  const bool shape =
      (s.head_dim == 32 || s.head_dim == 64 || s.head_dim == 128) && s.group >= 1 && s.group <= kMostGroup;
  for (const AttentionConfig& c : kAttentionConfigs) {
    if (shape && takes(c, s, target)) return &c;
  }
  return error(StatusCode::kUnsupported,
               "cuda: attention has no {} kernel for head_dim {}, {} query heads a KV head, on {}",
               s.decode ? "decode" : "prefill", s.head_dim, s.group, device_of(target));
}

Result<const ExpertsConfig*> select(const ExpertsShape& s, const Target& target) {
  const bool sizes = s.sizes.experts > 0 && s.sizes.experts <= kMostRoutedExperts && s.sizes.top_k > 0 &&
                     s.sizes.top_k <= kMostRoutedTopK;
  for (const ExpertsConfig& c : kExpertsConfigs) {
    if (sizes && takes(c, s, target)) return &c;
  }
  return error(StatusCode::kUnsupported, "cuda: moe has no kernel for {} of {} experts, {} x {}, on {}",
               s.sizes.top_k, s.sizes.experts, s.sizes.intermediate, s.sizes.hidden, device_of(target));
}

Result<const RouterConfig*> select(const RouterShape& s, const Target& target) {
  for (const RouterConfig& c : kRouterConfigs) {
    if (s.rows > 0 && takes(c, s)) return &c;
  }
  return error(StatusCode::kUnsupported, "cuda: the router has no kernel for {} rows of {}, on {}", s.rows,
               s.hidden, device_of(target));
}

Result<const SampleConfig*> select(const SampleShape& s, const Target& target) {
  for (const SampleConfig& c : kSampleConfigs) {
    if (target.features.have(c.needs) && s.vocab <= c.most_vocab) return &c;
  }
  return error(StatusCode::kUnsupported, "cuda: no kernel samples from a vocabulary of {} on {}", s.vocab,
               device_of(target));
}

}  // namespace moesaic::cuda
