#include "backend/cuda/weights/draft.h"

#include <algorithm>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/weights/upload.h"
#include "backend/draft_head.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

// The residual stream as it is, in F16: its largest values are some ten thousand, and F16 ends at 65,504.
constexpr float kTapFactor = 1.0f / 64;
constexpr float kNoSink = -1e4f;

Status unsupported(const Eagle3Config& c) {
  if (c.head_dim != 32 && c.head_dim != 64 && c.head_dim != 128)
    return error(StatusCode::kUnsupported,
                 "cuda: the draft head's head_dim {} is not 32, 64 or 128; use --device cpu", c.head_dim);
  if (c.heads / c.kv_heads > kMostGroup)
    return error(StatusCode::kUnsupported,
                 "cuda: {} query heads of the draft head share a KV head, at most {} may; use --device cpu",
                 c.heads / c.kv_heads, kMostGroup);
  return {};
}

class DraftLoader {
 public:
  DraftLoader(const Eagle3Config& config, const BackendOptions& options, Uploader& up)
      : config_(config), options_(options), up_(up) {}
  Result<DraftWeights> run(const Eagle3Weights& w);

 private:
  std::string name(const char* tensor) const { return fmt::format("{}: {}", config_.name, tensor); }
  // Products of MX weights go through kernels that know no SwiGLU of a dense matrix (quads): a
  // head's have the order that every kernel of gemm() takes.
  Result<Kind> kind_of_all(const std::vector<MatrixView>& sections, const char* tensor) const;
  Status load_norms(const Eagle3Weights& w);
  Status load_matrices(const Eagle3Weights& w);
  Status load_tables(const Eagle3Weights& w);
  Result<DeviceBuffer> constant(size_t count, float value, const char* tensor);
  template <typename T>
  Result<DeviceBuffer> copy(const std::vector<T>& values, const char* tensor);

  const Eagle3Config& config_;
  const BackendOptions& options_;
  Uploader& up_;
  DraftWeights out_;
};

Result<Kind> DraftLoader::kind_of_all(const std::vector<MatrixView>& sections, const char* tensor) const {
  const Kind kind = kind_of(sections[0].format, draft_format(sections[0], options_.dense));
  for (const MatrixView& m : sections) {
    if (m.format != sections[0].format)
      return invalid("{}: tensors of '{}' differ in type", config_.name, tensor);
  }
  return kind;
}

Status DraftLoader::load_norms(const Eagle3Weights& w) {
  float input = 0, fc = 0, embed = 0, hidden = 0, mlp = 0, last = 0;
  if (w.input_norm.data != nullptr) {
    ASSIGN_OR_RETURN(out_.input_norm, up_.vector({w.input_norm}, name("input_norm"), &input));
    out_.fc_factor = f16_factor(config_.features(), input);
  } else {
    out_.fc_factor = kTapFactor;
  }
  if (!w.fc_norms.empty()) {
    ASSIGN_OR_RETURN(out_.fc_norms, up_.vector(w.fc_norms, name("fc_norm"), &fc));
    out_.fc_factor = f16_factor(config_.hidden, fc);
  }
  ASSIGN_OR_RETURN(out_.embed_norm, up_.vector({w.embed_norm}, name("input_layernorm"), &embed));
  ASSIGN_OR_RETURN(out_.hidden_norm, up_.vector({w.hidden_norm}, name("hidden_norm"), &hidden));
  ASSIGN_OR_RETURN(out_.layer.mlp_norm, up_.vector({w.mlp_norm}, name("post_attention_layernorm"), &mlp));
  ASSIGN_OR_RETURN(out_.norm, up_.vector({w.norm}, name("norm"), &last));
  out_.joined_factor = f16_factor(config_.hidden, std::max(embed, hidden));
  out_.layer.mlp_factor = f16_factor(config_.hidden, mlp);
  out_.norm_factor = f16_factor(config_.hidden, last);
  return {};
}

Status DraftLoader::load_matrices(const Eagle3Weights& w) {
  const auto load = [&](Matrix& to, const std::vector<MatrixView>& sections, const char* tensor,
                        RowOrder order = RowOrder::kPlain) -> Status {
    ASSIGN_OR_RETURN(const Kind kind, kind_of_all(sections, tensor));
    const int head_dim = order == RowOrder::kHeads ? config_.head_dim : 0;
    ASSIGN_OR_RETURN(to, up_.matrix(sections, kind, order, head_dim, kDraftHeadPart, name(tensor)));
    return {};
  };
  RETURN_IF_ERROR(load(out_.fc, {w.fc}, "fc"));
  RETURN_IF_ERROR(load(out_.layer.qkv, {w.q, w.k, w.v}, "qkv_proj", RowOrder::kHeads));
  RETURN_IF_ERROR(load(out_.layer.o, {w.o}, "o_proj"));
  ASSIGN_OR_RETURN(const Kind kind, kind_of_all({w.gate, w.up}, "gate_proj, up_proj"));
  ASSIGN_OR_RETURN(out_.layer.gate_up,
                   up_.pairs(w.gate, w.up, kind, kDraftHeadPart, name("gate_proj, up_proj")));
  RETURN_IF_ERROR(load(out_.layer.down, {w.down}, "down_proj"));
  return w.head.data != nullptr ? load(out_.head, {w.head}, "lm_head") : Status();
}

Result<DeviceBuffer> DraftLoader::constant(size_t count, float value, const char* tensor) {
  return copy(std::vector<float>(count, value), tensor);
}
template <typename T>
Result<DeviceBuffer> DraftLoader::copy(const std::vector<T>& values, const char* tensor) {
  const size_t bytes = values.size() * sizeof(T);
  ASSIGN_OR_RETURN(DeviceBuffer out, up_.buffer(bytes, 0, kDraftHeadPart, name(tensor)));
  RETURN_IF_ERROR(up_.put(out, 0, values.data(), bytes, name(tensor)));
  return out;
}

Status DraftLoader::load_tables(const Eagle3Weights& w) {
  if (w.embed.data != nullptr) {
    ASSIGN_OR_RETURN(out_.embed, up_.table(w.embed, kDraftHeadPart, name("embed_tokens")));
  }
  out_.rope = make_rope_table(config_.rope, config_.head_dim);
  const auto intermediate = static_cast<size_t>(config_.intermediate);
  ASSIGN_OR_RETURN(out_.inverse_frequency, copy(out_.rope.inverse_frequency, "RoPE"));
  ASSIGN_OR_RETURN(out_.ids, copy(w.target_ids, "d2t"));
  ASSIGN_OR_RETURN(out_.layer.qkv_bias, constant(static_cast<size_t>(out_.layer.qkv.rows), 0, "biases"));
  ASSIGN_OR_RETURN(out_.layer.gate_bias, constant(intermediate, 0, "biases"));
  ASSIGN_OR_RETURN(out_.layer.up_bias, constant(intermediate, -1, "biases"));
  ASSIGN_OR_RETURN(out_.layer.sinks, constant(static_cast<size_t>(config_.heads), kNoSink, "sinks"));
  return {};
}

Result<DraftWeights> DraftLoader::run(const Eagle3Weights& w) {
  RETURN_IF_ERROR(unsupported(config_));
  out_.layer.shape = layer_shape(config_);
  out_.layer.fp8 = options_.kv == KvFormat::kFp8;
  RETURN_IF_ERROR(load_norms(w));
  RETURN_IF_ERROR(load_matrices(w));
  RETURN_IF_ERROR(load_tables(w));
  RETURN_IF_ERROR(up_.finish());
  return std::move(out_);
}

}  // namespace

Result<DraftWeights> load_draft_weights(const Eagle3Config& config, const Eagle3Weights& weights,
                                        const BackendOptions& options, Uploader& up) {
  return DraftLoader(config, options, up).run(weights);
}

}  // namespace moesaic::cuda
