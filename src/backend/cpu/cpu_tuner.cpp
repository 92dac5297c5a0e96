// Measures a loaded model: the bandwidth, and how decoding reads weights best.
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/multiply_rate.h"
#include "base/error.h"

namespace moesaic::cpu {

double CpuBackend::read_bandwidth() {
  if (layers_.empty()) return 0;
  DecodeProbe probe = make_probe();
  return decode_bandwidth(probe, pool_, chosen_.tuning, read_patterns_);
}

double CpuBackend::multiply_rate() { return measure_multiply_rate(kernels_, pool_); }

DecodeProbe CpuBackend::make_probe() {
  std::vector<ExpertWeights> layers;
  for (const Layer& layer : layers_) layers.push_back({&layer.gate_up, &layer.down});
  const auto act_of = [&](Operand operand, const PackedMatrix& m) {
    const bool rounds = rounding_of(options_.moe_path, operand, m.format).rounds();
    return rounds ? Act::kF32 : act_format(m.format, kernels_);
  };
  return {kernels_,
          pool_,
          ops_.workspaces(),
          std::move(layers),
          head_,
          static_cast<int>(layers_[0].places()),
          config_.experts_per_token,
          {act_of(Operand::kExpertInput, layers_[0].gate_up), act_of(Operand::kSwiglu, layers_[0].down)}};
}

ChosenTuning CpuBackend::choose_tuning() {
  if (asked_prefetch_)
    return {.tuning = {.experts = *asked_prefetch_, .dense = *asked_prefetch_},
            .source = TuningSource::kAsked};
  DecodeProbe probe = make_probe();
  return tuning_for(probe, kernels_, pool_.threads(), options_.tuning_folder);
}

Result<ReadTuning> CpuBackend::tune_reads(const std::string& folder) {
  constexpr double kSeconds = 3;
  DecodeProbe probe = make_probe();
  const Measurement measured = measure_tuning(probe, kSeconds);
  chosen_ = measured.chosen;
  ReadTuning result{.chosen = words_of(chosen_)};
  for (const CandidateTiming& c : measured.candidates)
    result.candidates.push_back({c.setting, c.value, c.best_gb_s, c.median_gb_s, c.chosen});
  if (fits_caches(probe)) return result;
  const Status kept = folder.empty() ? error(StatusCode::kIo, "no cache folder; set XDG_CACHE_HOME or HOME")
                                     : keep_tuning(probe, kernels_, pool_.threads(), folder, chosen_);
  if (kept.ok())
    result.file = tuning_file(probe, kernels_, pool_.threads(), folder);
  else
    result.chosen += fmt::format("; not kept ({})", kept.message());
  return result;
}

}  // namespace moesaic::cpu
