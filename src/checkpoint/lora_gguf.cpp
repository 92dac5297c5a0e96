// LoRA adapters as llama.cpp has them: a factor each beside the name of the tensor that it adapts, and one
// alpha.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "checkpoint/gguf_fields.h"
#include "checkpoint/lora_tensors.h"

namespace moesaic {
namespace {

struct GgufTarget {
  LoraTarget target;
  const char* name;  // behind "blk.N."
  int64_t count, rows, cols;
};
std::vector<GgufTarget> gguf_targets(const ModelConfig& c) {
  return {{LoraTarget::kQ, "attn_q.weight", 1, c.q_size(), c.hidden},
          {LoraTarget::kK, "attn_k.weight", 1, c.kv_size(), c.hidden},
          {LoraTarget::kV, "attn_v.weight", 1, c.kv_size(), c.hidden},
          {LoraTarget::kO, "attn_output.weight", 1, c.hidden, c.q_size()},
          {LoraTarget::kRouter, "ffn_gate_inp.weight", 1, c.experts, c.hidden},
          {LoraTarget::kGate, "ffn_gate_exps.weight", c.experts, c.intermediate, c.hidden},
          {LoraTarget::kUp, "ffn_up_exps.weight", c.experts, c.intermediate, c.hidden},
          {LoraTarget::kDown, "ffn_down_exps.weight", c.experts, c.hidden, c.intermediate}};
}

Status check_adapter(const GgufFile& file, const std::string& name) {
  const GgufFields fields(file, name);
  const auto text = [&](const char* key) { return fields.text(key).substr(0, 40); };
  const std::string kind = text("general.type"), type = text("adapter.type"),
                    architecture = text("general.architecture");
  if (kind != "adapter") return invalid("{}: not an adapter: general.type is '{}'", name, kind);
  if (type != "lora")
    return error(StatusCode::kUnsupported, "{}: adapter.type is '{}', expected lora", name, type);
  if (architecture != "gpt-oss" && architecture != "gptoss")
    return error(StatusCode::kUnsupported, "{}: an adapter of architecture '{}', expected gpt-oss", name,
                 architecture);
  if (file.metadata.contains("adapter.alora.invocation_tokens"))
    return error(StatusCode::kUnsupported,
                 "{}: an adapter that only certain tokens switch on is not supported", name);
  return {};
}

// The adapter's alpha, by which its factors are multiplied over their rank. 0 where the file has none: then
// they are not, as in llama.cpp.
Result<double> alpha_of(const GgufFile& file, const std::string& name) {
  if (!file.metadata.contains("adapter.lora.alpha")) return 0.0;
  const auto* alpha = file.get<double>("adapter.lora.alpha");
  if (alpha != nullptr && std::isfinite(*alpha)) return *alpha;
  return invalid("{}: adapter.lora.alpha is no number", name);
}

struct GgufPair {
  const RawTensor *down = nullptr, *up = nullptr;
};

Status not_adapted(const std::string& file, const std::string& tensor, const char* why) {
  return error(StatusCode::kUnsupported,
               "{}: tensor '{}' {}; supported are LoRA factors of attn_q, attn_k, attn_v, attn_output, "
               "ffn_gate_inp and "
               "ffn_*_exps",
               file, tensor.substr(0, 120), why);
}

Result<std::map<std::string, GgufPair>> pair_by_tensor(const TensorMap& tensors, const std::string& file) {
  constexpr std::string_view kDown = ".lora_a", kUp = ".lora_b";
  std::map<std::string, GgufPair> pairs;
  for (const auto& [name, tensor] : tensors.tensors) {
    if (!name.ends_with(kDown) && !name.ends_with(kUp))
      return not_adapted(file, name, "is not a LoRA factor");
    GgufPair& pair = pairs[name.substr(0, name.size() - kUp.size())];
    (name.ends_with(kDown) ? pair.down : pair.up) = &tensor;
  }
  for (const auto& [module, pair] : pairs) {
    if (pair.down == nullptr || pair.up == nullptr)
      return invalid("{}: '{}' has no {}", file, module.substr(0, 120),
                     pair.down == nullptr ? "lora_a" : "lora_b");
  }
  return pairs;
}

// "blk.3.attn_q.weight": layer 3, and which matrix. Nothing: none of this model.
std::optional<std::pair<int, GgufTarget>> find_target(const std::string& module, const ModelConfig& config) {
  constexpr std::string_view kLayers = "blk.";
  int layer = -1;
  const char* const end = module.data() + module.size();
  if (!module.starts_with(kLayers)) return std::nullopt;
  const auto [next, code] = std::from_chars(module.data() + kLayers.size(), end, layer);
  if (code != std::errc() || next == end || *next != '.' || layer < 0 || layer >= config.layers)
    return std::nullopt;
  for (const GgufTarget& t : gguf_targets(config)) {
    if (std::string_view(next + 1, end) == t.name) return std::pair(layer, t);
  }
  return std::nullopt;
}

// [rank, cols] and [rows, rank], of each expert one after the other.
bool fits_model(const GgufTarget& t, const GgufPair& pair) {
  std::vector<int64_t> down = pair.down->shape, up = pair.up->shape;
  for (std::vector<int64_t>* shape : {&down, &up}) {
    if (shape->size() == 2) shape->insert(shape->begin(), 1);
    if (shape->size() != 3 || (*shape)[0] != t.count) return false;
  }
  return down[2] == t.cols && up[1] == t.rows && down[1] == up[2];
}

}  // namespace

Result<std::vector<LoraFactors>> gguf_lora_factors(GgufFile& file, const std::string& name, double scale,
                                                   const ModelConfig& config) {
  RETURN_IF_ERROR(check_adapter(file, name));
  ASSIGN_OR_RETURN(const double alpha, alpha_of(file, name));
  ASSIGN_OR_RETURN(const auto pairs, pair_by_tensor(file.tensors, name));
  std::vector<LoraFactors> all;
  for (const auto& [module, pair] : pairs) {
    const auto place = find_target(module, config);
    if (!place) return not_adapted(name, module, "is not a matrix that can be adapted in this model");
    const GgufTarget& t = place->second;
    if (!fits_model(t, pair))
      return invalid("{}: LoRA factors of '{}' are not of this model's size", name, module);
    LoraFactors f{.target = t.target,
                  .layer = place->first,
                  .count = t.count,
                  .rank = pair.up->shape.back(),
                  .rows = t.rows,
                  .cols = t.cols};
    ASSIGN_OR_RETURN(f.down, lora_floats(*pair.down, module));
    ASSIGN_OR_RETURN(f.up, lora_floats(*pair.up, module));
    const double factor = scale * (alpha != 0 ? alpha / static_cast<double>(f.rank) : 1);
    std::ranges::transform(f.up, f.up.begin(), [factor](float v) { return static_cast<float>(factor * v); });
    if (!std::ranges::all_of(f.up, [](float v) { return std::isfinite(v); }))
      return invalid("{}: LoRA factors of '{}' times their scale {:g} are beyond F32", name, module, factor);
    all.push_back(std::move(f));
  }
  return all;
}

}  // namespace moesaic
