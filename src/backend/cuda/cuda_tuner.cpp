// The CUDA backend measures itself, and chooses kernels by it.
#include <algorithm>
#include <chrono>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/random.h"
#include "backend/cuda/runtime/replay_timer.h"
#include "base/error.h"
#include "base/seconds.h"
#include "tuning/moe_probe.h"

namespace moesaic::cuda {

double CudaBackend::read_bandwidth() {
  const DeviceGuard guard(options_.device);
  const Result<double> gb_s = measure_read_bandwidth(stream_);
  return gb_s.ok() ? gb_s.value() : 0;
}

std::vector<OpProfile> CudaBackend::profile() const {
  std::vector<OpProfile> ops(profile_.begin(), profile_.end());
  for (int op = 0; op < kOps; ++op) ops[op].kernels = launches_.kernels(kOpNames[op]);
  return ops;
}

void CudaBackend::reset_profile() {
  for (int op = 0; op < kOps; ++op) profile_[op] = {.op = kOpNames[op]};
}

namespace {

std::string name_of(const Result<LinearChoice>& choice) {
  if (!choice.ok()) return choice.status().message();
  return fmt::format("{}{}", choice.value().config->name, choice.value().fuses_norm ? ", norm fused" : "");
}

}  // namespace

std::vector<KernelChoice> CudaBackend::kernel_choices(int tokens) {
  if (model_.layers.empty()) return {};
  const ModelConfig& c = model_.config;
  const Layer& layer = model_.layers[0];
  // Null where the host has all experts and computes.
  const MoeKernelConfig* const experts =
      model_.on_host(0) && !streams(tokens) ? nullptr : &moe_.config_for(model_, tokens);
  const auto linear = [&](const Matrix& w, int rows, InputNorm norm) {
    return name_of(select(LinearShape{w.kind, w.rows, w.cols, rows, norm}, target_));
  };
  const auto attention = select(AttentionShape{.decode = tokens == 1 && !target_.batch_invariant,
                                               .head_dim = c.head_dim,
                                               .group = c.heads / c.kv_heads},
                                target_);
  const auto router =
      select(RouterShape{tokens, c.hidden, c.experts, c.experts_per_token, model_.slabs}, target_);
  // moe_decode and the host add to the residual by themselves.
  const bool adds = experts == nullptr || experts->kernel == MoeKernel::kDecode;
  const InputNorm before = adds ? InputNorm::kNorm : InputNorm::kDeferred;
  return {{"qkv", linear(layer.qkv, tokens, before)},
          {"attend", attention.ok() ? std::string(attention.value()->name) : attention.status().message()},
          {"project", linear(layer.o, tokens, InputNorm::kNone)},
          {"moe", experts == nullptr ? host_name()
                                     : fmt::format("{}; {}",
                                                   router.ok() ? std::string(router.value()->name)
                                                               : router.status().message(),
                                                   experts->name)},
          {"unembed", linear(model_.head, 1, before)},
          {"sample", select(SampleShape{c.vocab}, target_).ok() ? "sample" : "on the host"}};
}

TuningKey CudaBackend::tuning_key() const {
  const ModelConfig& c = model_.config;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  TuningKey key{.device = name_.substr(name_.find('(')),  // whatever its index is
                .driver = std::to_string(driver),
                .program = MOESAIC_VERSION,
                .experts = c.experts,
                .top_k = c.experts_per_token,
                .hidden = c.hidden,
                .intermediate = c.intermediate};
  for (const MoeKernelConfig& config : moe_configs()) key.configs += fmt::format("{};", config.name);
  return key;
}

Result<std::vector<TunedStep>> CudaBackend::probe_experts(std::vector<TunedStep> kept) {
  constexpr double kSecondsAConfig = 0.005;
  const auto time = [this](int tokens, const MoeKernelConfig& config) -> Result<double> {
    ASSIGN_OR_RETURN(const OpTiming t, time_moe(tokens, kSecondsAConfig, MoeFrom::kRows, config.name));
    return t.seconds.front();  // the fastest: other work on the device only makes it slower
  };
  // A device that rests has lower clocks at first.
  const int most = std::min(options_.max_rows, kMostProbed);
  RETURN_IF_ERROR(time_moe(most, kSecondsAConfig, MoeFrom::kRows, {}).status());
  return probe_moe(shape_of(experts_of(model_, 0), 1), moe_configs(), std::move(kept),
                   {.most_tokens = options_.max_rows}, time);
}

bool CudaBackend::is_to_be_tuned(const std::vector<TunedStep>& kept) const {
  constexpr double kLeastBytes = 256e6;  // all experts': smaller ones fit the caches, and take no time
  const MoeShape shape = shape_of(experts_of(model_, 0), 1);
  return options_.tune && !options_.batch_invariant && !options_.tuning_folder.empty() &&
         shape.expert_bytes * shape.experts * model_.host_from >= kLeastBytes &&
         !covers(kept, moe_configs(), options_.max_rows);
}

// The figures of tuning/moe_kernels.cpp are an H200's. What cannot be kept is not measured: each load might
// choose otherwise, and another kernel adds in another order. What goes wrong here ends nothing: the figures
// then choose, and a device that has a fault says so in its next operation.
void CudaBackend::tune_experts() {
  measured_.clear();
  const TuningKey key = tuning_key();
  const std::string& folder = options_.tuning_folder;
  std::vector<TunedStep> steps = read_tuning(folder, key);
  moe_.prefer(steps);
  if (!is_to_be_tuned(steps)) return;
  Status status = write_tuning(folder, key, steps);
  if (status.ok()) {
    const auto start = std::chrono::steady_clock::now();
    Result<std::vector<TunedStep>> probed = probe_experts(steps);
    const double seconds = seconds_since(start);
    status = probed.ok() ? write_tuning(folder, key, probed.value()) : probed.status();
    if (status.ok()) moe_.prefer(std::move(probed).value());
    measured_ = fmt::format("the experts' kernels were measured on this device in {:.1f} s: {}", seconds,
                            tuning_path(folder, key));
  }
  if (!status.ok()) measured_ = "the experts' kernels are chosen unmeasured: " + status.message();
}

Result<OpTiming> CudaBackend::time_moe(int rows, double seconds, MoeFrom from, std::string_view config) {
  if (rows < 1 || rows > options_.max_rows)
    return invalid("{} rows: 1 to {} are possible", rows, options_.max_rows);
  if (model_.on_host(0)) return error(StatusCode::kUnsupported, "cuda: all experts are in host memory");
  const DeviceGuard guard(options_.device);
  const MoeKernelConfig* kernel = &moe_.config_for(model_, rows);
  if (!config.empty()) {
    ASSIGN_OR_RETURN(kernel, Moe::find_config(model_, rows, config));
  }
  shape_ = {.rows = rows};
  launches_.clear();
  const int layers = model_.host_from;
  const bool from_logits = from == MoeFrom::kLogits;
  const size_t scores = static_cast<size_t>(rows) * model_.config.experts;  // scores of a layer
  ASSIGN_OR_RETURN(
      const DeviceBuffer logits,
      DeviceBuffer::allocate(from_logits ? layers * scores * sizeof(float) : 0, "the router's logits"));
  const auto logits_of = [&](int layer) { return logits.as<float>() + layer * scores; };
  const auto all_layers = [&]() -> Status {
    const LaunchLog::Scope scope(launches_, kOpNames[kMoe]);
    DeferredResidual deferred;
    for (int i = 0; i < layers; ++i) {
      const Norm norm = moe_norm(i, deferred);
      ASSIGN_OR_RETURN(deferred,
                       from_logits
                           ? moe_.run_from_logits(model_, i, norm, *kernel, logits_of(i), stream_)
                           : moe_.run(model_, i, norm, *kernel, target_, options_.router_trace, stream_));
    }
    return {};
  };
  const int64_t values = int64_t{rows} * model_.config.hidden;
  const auto fresh = [&](int pass) -> Status {
    RETURN_IF_ERROR(fill_random(x_.as<float>(), values, pass, stream_));
    if (!from_logits) return {};
    for (int i = 0; i < layers; ++i)
      RETURN_IF_ERROR(moe_.score_rows(model_, i, moe_norm(i, {}), target_, logits_of(i), stream_));
    return {};
  };
  ASSIGN_OR_RETURN(std::vector<double> times, time_replays(all_layers, fresh, seconds, stream_));
  for (double& t : times) t /= static_cast<double>(layers);
  const Layer& layer = model_.layers[0];
  const double router = from_logits ? static_cast<double>(layer.router.bytes()) : 0;
  // The residual is read and written once.
  return OpTiming{.seconds = std::move(times),
                  .bytes = moe_bytes(layer) - router + 8.0 * static_cast<double>(values),
                  .flops = moe_flops(),
                  .kernels = launches_.kernels(kOpNames[kMoe])};
}

}  // namespace moesaic::cuda
