// Which kernel an op runs. For each op one table says what is compiled, the preferred rows first, and
// select() takes the first row that fits the shape and the device: a pure function, which needs no device.
// What no row takes is an error that names the op, the format and the shape. The experts' kernels are chosen
// by their time as well: tuning/moe_kernels.h has that table.
#pragma once

#include <span>
#include <string_view>

#include "backend/backend.h"
#include "backend/cuda/layout/matrix.h"
#include "backend/cuda/runtime/features.h"
#include "tuning/moe_kernels.h"

namespace moesaic::cuda {

// A device, and what its user asked of it.
struct Target {
  Features features;
  bool portable = false;         // only kernels that every device has
  bool batch_invariant = false;  // one order of sums for all batches
  MoePath moe_path = MoePath::kAuto;
};
// A device as options have it. Devices that cannot run the kernels for few rows in kernels/sm90/ are
// portable, and so batch-invariant: those kernels split small batches.
Target target_of(const Features& features, const BackendOptions& options);
// An error in one line where the device, `name`, has no kernels for the path that options ask for.
Status check_moe_path(const Features& features, const BackendOptions& options, std::string_view name);

// ---- y = W x, and y = W norm(x): QKV, output projection, lm_head ----

enum class LinearKernel {
  kDenseDecode,  // kernels/sm90/dense_decode.h
  kWgmma,        // kernels/sm90/gemm_wgmma.h
  kMma,          // gemm() of ops/linear.h: mma.sync, small M up to a tile of 32, large M beyond
  kBlockScaled   // kernels/sm120/gemm.h
};
enum class InputNorm {
  kNone,
  kNorm,     // x is to be normed first
  kDeferred  // and a deferred residual to be added before that
};
struct LinearShape {
  Kind kind = Kind::kBF16;
  int64_t rows = 0, cols = 0;
  int tokens = 0;
  InputNorm norm = InputNorm::kNone;
};
struct LinearConfig {
  std::string_view name;
  LinearKernel kernel = LinearKernel::kMma;
  int least_tokens = 1;
  int most_tokens = 0;  // 0: any number
  bool (*takes)(Kind kind) = nullptr;
  unsigned needs = 0;     // Feature
  bool invariant = true;  // may serve a batch-invariant target
  int cols_multiple = kBlock;
  int least_cols = kBlock;
  int most_normed_tokens = 0;  // with which it norms x by itself, nothing being deferred
  int most_normed_cols = 0;
  bool adds_deferred = false;                        // and adds what is deferred, too
  bool (*fits)(int64_t cols, int tokens) = nullptr;  // shared memory; null: always
};
std::span<const LinearConfig> linear_configs();

struct LinearChoice {
  const LinearConfig* config = nullptr;
  bool fuses_norm = false;  // else norm() goes before it, where one is wanted
};
Result<LinearChoice> select(const LinearShape& shape, const Target& target);
// The tile (in tokens) with which the busiest multiprocessor ends first, of the kernels of kMma. Their
// results do not depend on it.
int mma_tile(int64_t rows, int tokens, int multiprocessors);

// ---- attention ----

enum class AttentionKernel { kDecode, kPrefill, kPortable };
struct AttentionShape {
  bool decode = false;           // single rows, each with its KV splits; else tiles of rows of one sequence
  int head_dim = 64, group = 1;  // group: query heads of a KV head
};
struct AttentionConfig {
  std::string_view name;
  AttentionKernel kernel = AttentionKernel::kPortable;
  bool decode = false;
  unsigned needs = 0;
  bool portable = false, invariant = true;  // portable: every device has it
};
Result<const AttentionConfig*> select(const AttentionShape& shape, const Target& target);

// ---- the experts: how their weights lie in memory, and with that the kernels there are for them ----

enum class ExpertsLayout {
  kQuads,       // layout/quad_layout.h, for kernels/sm120/
  kSlabs,       // layout/slab_layout.h, for kernels/sm90/
  kWeightTiles  // layout/matrix.h, for gemm()
};
// The sizes that route() takes: experts, and choices of a row.
inline constexpr int kMostRoutedExperts = 1024, kMostRoutedTopK = 16;
inline constexpr int kMostHidden = 12256;  // a row in F32 in the 48 KB that every kernel may have
struct ExpertsShape {
  bool mxfp4 = false;  // all of them
  MoeShape sizes;      // tokens and bytes aside
  double swiglu_alpha = 0, swiglu_limit = 0;
};
struct ExpertsConfig {
  std::string_view name;
  ExpertsLayout layout = ExpertsLayout::kWeightTiles;
  bool mxfp4_only = true;
  MoePath path = MoePath::kAuto;
  unsigned needs = 0;
  bool any_path = false, portable = false, invariant = true;  // portable: for such targets alone
  bool gpt_oss_swiglu = false;                                // for its alpha and limit alone
  bool gpt_oss_sizes = false;                                 // compiled for these alone: slabs_take()
  int cols_multiple = 1;                                      // hidden and intermediate are multiples of it
};
Result<const ExpertsConfig*> select(const ExpertsShape& shape, const Target& target);

// ---- the router: scores of the experts, and the choice among them ----

enum class RouterKernel {
  kScore,       // norm and scores in one kernel; the experts' kernels or route() choose
  kChoose,      // norm, scores, choice and work list in one kernel
  kNormRouter,  // norm(), router(), then route()
};
struct RouterShape {
  int rows = 0, hidden = 0, experts = 0, top_k = 0;
  bool slabs = false;        // the experts' weights are in slabs (layout/slab_layout.h)
  bool scores_only = false;  // the choice is made later, from the scores
};
struct RouterConfig {
  std::string_view name;
  RouterKernel kernel = RouterKernel::kNormRouter;
  bool slabs_only = false, chooses = false;
  int most_rows = 0, most_hidden = 0, most_experts = 0, most_top_k = 0;  // 0: any
  int most_logits = 0;                                                   // rows by experts
};
Result<const RouterConfig*> select(const RouterShape& shape, const Target& target);

// ---- sampling on the device ----

struct SampleShape {
  int vocab = 0;
};
struct SampleConfig {
  std::string_view name;
  int ctas = 1;  // CTAs of a row
  unsigned needs = 0;
  int most_vocab = 0;
};
Result<const SampleConfig*> select(const SampleShape& shape, const Target& target);

}  // namespace moesaic::cuda
