// What the CUDA backend measures of itself, and which kernels it chooses.
#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/runtime/bandwidth.h"
#include "backend/cuda/runtime/device_guard.h"
#include "backend/cuda/runtime/random.h"
#include "backend/cuda/runtime/replay_timer.h"
#include "base/error.h"

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
  const MoeKernelConfig& experts = moe_.config_for(model_, tokens);
  const auto linear = [&](const Matrix& w, int rows, InputNorm norm) {
    return name_of(select(LinearShape{w.kind, w.rows, w.cols, rows, norm}, target_));
  };
  const auto attention = select(AttentionShape{.decode = tokens == 1 && !target_.batch_invariant,
                                               .head_dim = c.head_dim,
                                               .group = c.heads / c.kv_heads},
                                target_);
  const auto router =
      select(RouterShape{tokens, c.hidden, c.experts, c.experts_per_token, model_.slabs}, target_);
  // moe_decode adds to the residual by itself.
  const InputNorm before = experts.kernel == MoeKernel::kDecode ? InputNorm::kNorm : InputNorm::kDeferred;
  return {{"qkv", linear(layer.qkv, tokens, before)},
          {"attend", attention.ok() ? std::string(attention.value()->name) : attention.status().message()},
          {"project", linear(layer.o, tokens, InputNorm::kNone)},
          {"moe", fmt::format("{}; {}", router.ok() ? router.value()->name : router.status().message(),
                              experts.name)},
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

Result<OpTiming> CudaBackend::time_moe(int rows, double seconds, MoeFrom from, std::string_view config) {
  if (rows < 1 || rows > options_.max_rows)
    return invalid("{} rows: 1 to {} are possible", rows, options_.max_rows);
  const DeviceGuard guard(options_.device);
  const MoeKernelConfig* kernel = &moe_.config_for(model_, rows);
  if (!config.empty()) {
    ASSIGN_OR_RETURN(kernel, Moe::find_config(model_, rows, config));
  }
  shape_ = {.rows = rows};
  launches_.clear();
  const int layers = model_.config.layers;
  const bool from_logits = from == MoeFrom::kLogits;
  const size_t scores = static_cast<size_t>(rows) * model_.config.experts;  // of a layer
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
