// Times decoding's reads of a loaded model, to choose how they are made (tuning.h).
#pragma once

#include "backend/cpu/bandwidth.h"
#include "backend/cpu/gemm.h"

namespace moesaic::cpu {

// The experts of a layer, as the backend has them, and the formats of activations that meet them.
struct ExpertWeights {
  const PackedMatrix *gate_up, *down;
};
struct ExpertActs {
  Act gate_up = Act::kF32, down = Act::kF32;
};

// One token through top_k experts of a layer, or through a part of lm_head: the kernels and loops of moe()
// and of dense products, without what lies between them. Several tokens take the second product of one
// expert, or as much of lm_head. Each pass takes the next experts or rows, round and round, so that no cache
// holds them.
class DecodeProbe {
 public:
  // acts: what meets the first layer's matrices. Layers whose matrices have other formats are left out.
  DecodeProbe(const Kernels& kernels, ThreadPool& pool, std::vector<Workspace>& workspaces,
              std::vector<ExpertWeights> layers, const PackedMatrix& head, int experts, int top_k,
              const ExpertActs& acts);

  double seconds(const CpuTuning& tuning, ProbedPart part = ProbedPart::kExperts);  // times the next pass
  // The same of several tokens, at most the last of kExpandCounts. part: kDown or kDense.
  double seconds_of_tokens(const CpuTuning& tuning, ProbedPart part, int tokens);
  // True if GemmTuning::expand_tokens holds for these weights, and what it is where nothing is measured.
  bool expands(ProbedPart part) const;
  int standard_expand_tokens() const { return kernels_.expand_tokens; }
  double pass_bytes(ProbedPart part = ProbedPart::kExperts) const;  // weights and scales that a pass reads
  double expand_bytes(ProbedPart part) const;                       // read by a pass of several tokens
  double all_bytes() const { return pass_bytes() * static_cast<double>(passes()); }
  const std::vector<ExpertWeights>& layers() const { return layers_; }
  TunedWeights weights() const {
    return {layers_[0].gate_up->format, head_.format, layers_[0].gate_up->cols};
  }

 private:
  int64_t passes() const { return std::ssize(layers_) * (experts_ / top_k_); }
  double head_bytes(double about) const;   // bytes of head_pairs(about)
  int64_t head_pairs(double bytes) const;  // pairs that have so many bytes, at least one
  void run(const PackedMatrix& m, const ActRows& act, int first, int experts, int tokens,
           const CpuTuning& tuning);
  void run_head(int64_t pass, int64_t pairs, int tokens, const CpuTuning& tuning);

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<Workspace>& workspaces_;
  std::vector<ExpertWeights> layers_;
  const PackedMatrix& head_;
  int experts_, top_k_;
  ActRows gate_up_act_, down_act_, head_act_;
  int64_t next_ = 0;
};

// GB/s at which decoding can read the experts: by plain loads and by decoding's own kernel, whichever is
// quicker. Over the experts themselves, two gigabytes of them: what fits the caches would read faster than
// decoding ever can. patterns: as measure_read_bandwidth() has them (bandwidth.h).
double decode_bandwidth(DecodeProbe& probe, ThreadPool& pool, const CpuTuning& tuning,
                        std::vector<ReadPattern>& patterns);

// The measurements of one candidate.
struct CandidateTiming {
  std::string setting, value;
  double best_gb_s = 0, median_gb_s = 0;
  bool chosen = false;
};
struct Measurement {
  ChosenTuning chosen;
  std::vector<CandidateTiming> candidates;
};

// Setting by setting, in about so many seconds in all; where weights are expanded, half as many again for
// that.
Measurement measure_tuning(DecodeProbe& probe, double seconds);

// The tuning to use for these weights: what was kept of an earlier measurement, or one made now, of at most
// 300 ms or so, and kept. Experts that fit the caches are not measured: there is nothing to choose by.
// folder: of the cache; empty: none.
ChosenTuning tuning_for(DecodeProbe& probe, const Kernels& kernels, int threads, const std::string& folder);
bool fits_caches(const DecodeProbe& probe);
// Keeps a measurement for later loads.
Status keep_tuning(const DecodeProbe& probe, const Kernels& kernels, int threads, const std::string& folder,
                   const ChosenTuning& chosen);
std::string tuning_file(const DecodeProbe& probe, const Kernels& kernels, int threads,
                        const std::string& folder);

}  // namespace moesaic::cpu
