// A backend's choices by measurement, for `tune`, `plan` and `bench --moe`: an optional interface
// beside Backend, which Backend::tuner() gives.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "tuning/moe_kernels.h"
#include "tuning/tuning_file.h"

namespace moesaic {

// One op alone, for `bench --moe`.
struct OpTiming {
  std::vector<double> seconds;  // for one layer, a pass over all layers each, sorted; not empty
  double median() const { return seconds[seconds.size() / 2]; }
  double bytes = 0;  // weights and activations that one layer must read and write
  double flops = 0;
  std::vector<std::string> kernels;
};

// Where time_moe() begins: at the residual's rows, with norm and router, or at the router's logits (top-k,
// work list, both products, combine). Either way a deferred residual is added by the norm that follows.
enum class MoeFrom { kRows, kLogits };

// How decoding may read weights, with what was measured.
struct ReadTiming {
  std::string setting, value;  // "prefetch", "t0:1024"
  double best_gb_s = 0, median_gb_s = 0;
  bool chosen = false;
};
struct ReadTuning {
  std::vector<ReadTiming> candidates;  // the standard of each setting first; empty: nothing to choose
  std::string chosen;                  // in words
  std::string file;                    // where it was kept; empty: it was not
};

class Tuner {
 public:
  virtual ~Tuner() = default;
  // The kernels that moe() can run (tuning/moe_kernels.h), and the one it chooses for so many rows. Of a
  // loaded model; empty where there is no choice.
  virtual std::span<const MoeKernelConfig> moe_configs() const { return {}; }
  virtual std::string_view moe_choice(int) { return {}; }
  // A measured choice between them holds for this.
  virtual TuningKey tuning_key() const { return {}; }
  // The MoE operator of every layer in turn, on fresh random activations each pass, with the code that moe()
  // runs: so often that `seconds` are spent, but at least five and at most 200 times. config: one of
  // moe_configs() that takes so many rows, or empty for the one that moe() chooses.
  virtual Result<OpTiming> time_moe(int, double, MoeFrom, std::string_view config = {});
  // Measures how a loaded model's weights are read best, uses that from now on and keeps it in a folder for
  // later loads.
  virtual Result<ReadTuning> tune_reads(const std::string&) { return ReadTuning(); }
};

inline Result<OpTiming> Tuner::time_moe(int, double, MoeFrom, std::string_view) {
  return Status(StatusCode::kUnsupported, "only the cuda device times one op alone; use --device cuda");
}

}  // namespace moesaic
