#include "checkpoint/lora_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "core/weights.h"

namespace moesaic {
namespace {

struct Pair {
  const RawTensor *down = nullptr, *up = nullptr;  // lora_A, lora_B
};

// peft's names end so; "default" is the name of an adapter that was not saved by peft itself.
struct Ending {
  std::string_view text;
  const RawTensor* Pair::*factor;
};
constexpr Ending kEndings[] = {{".lora_A.weight", &Pair::down},
                               {".lora_B.weight", &Pair::up},
                               {".lora_A.default.weight", &Pair::down},
                               {".lora_B.default.weight", &Pair::up}};

Status unsupported(const RawTensor& t, const std::string& name, const char* why) {
  return error(StatusCode::kUnsupported,
               "{}: tensor '{}' {}; supported are LoRA factors of self_attn.{{q,k,v,o}}_proj, mlp.router and "
               "mlp.experts",
               t.file->path(), name.substr(0, 120), why);
}

// By module: "model.layers.0.self_attn.q_proj".
Result<std::map<std::string, Pair>> pair_up(const TensorMap& tensors) {
  constexpr std::string_view kPrefix = "base_model.model.";
  std::map<std::string, Pair> pairs;
  for (const auto& entry : tensors.tensors) {
    const std::string& name = entry.first;
    const RawTensor& tensor = entry.second;
    const auto* const ending =
        std::ranges::find_if(kEndings, [&](const Ending& e) { return name.ends_with(e.text); });
    if (ending == std::end(kEndings))
      return unsupported(tensor, name,
                         name.find("lora_magnitude_vector") != std::string::npos
                             ? "is of DoRA, which is not supported"
                             : "is not a LoRA factor");
    std::string module = name.substr(0, name.size() - ending->text.size());
    if (module.starts_with(kPrefix)) module.erase(0, kPrefix.size());
    const RawTensor*& place = pairs[module].*ending->factor;
    if (place != nullptr) return unsupported(tensor, name, "stands there twice");
    place = &tensor;
  }
  return pairs;
}

struct Place {
  std::string module;  // "model.layers.3.self_attn.q_proj"
  int layer = 0;
  int64_t expert = -1;  // the expert, for a module of one
  std::string part;     // "self_attn.q_proj"
};

constexpr std::string_view kExperts = "mlp.experts", kOneExpert = "mlp.experts.";

// A module of one expert, 7: unsloth's "mlp.experts.down_projs.7" is "mlp.experts.down_projs", others'
// "mlp.experts.7.down_proj" is "mlp.experts.down_proj".
bool split_expert(Place& place, const ModelConfig& config) {
  if (!place.part.starts_with(kOneExpert)) return true;
  const std::string rest = place.part.substr(kOneExpert.size());
  const size_t dot = rest.find('.');
  if (dot == std::string::npos) return false;
  const std::string before = rest.substr(0, dot), behind = rest.substr(dot + 1);
  const std::optional<int64_t> last = number_of<int64_t>(behind);
  place.expert = last ? *last : number_of<int64_t>(before).value_or(-1);
  place.part = std::string(kOneExpert) + (last ? before : behind);
  return place.expert >= 0 && place.expert < config.experts;
}

// "model.layers.3.mlp.experts.base_layer": layer 3, "mlp.experts". peft wraps a module once for each of its
// parameters.
std::optional<Place> place_of(std::string module, const ModelConfig& config) {
  constexpr std::string_view kLayers = "model.layers.", kWrapped = ".base_layer";
  while (module.ends_with(kWrapped)) module.resize(module.size() - kWrapped.size());
  if (!module.starts_with(kLayers)) return std::nullopt;
  Place place{.module = module};
  const char* const end = module.data() + module.size();
  const auto [next, code] = std::from_chars(module.data() + kLayers.size(), end, place.layer);
  if (code != std::errc() || next == end || *next != '.') return std::nullopt;
  place.part.assign(next + 1, end);
  const bool known = place.layer >= 0 && place.layer < config.layers && split_expert(place, config);
  return known ? std::optional(place) : std::nullopt;
}

// A matrix that may be adapted. parameter: its name in peft's patterns, behind the layer's name; null: the
// module's.
struct Target {
  LoraTarget target;
  const char *part, *parameter;
  int64_t count, rows, cols;
};
std::vector<Target> targets_of(const ModelConfig& c) {
  return {{LoraTarget::kQ, "self_attn.q_proj", nullptr, 1, c.q_size(), c.hidden},
          {LoraTarget::kK, "self_attn.k_proj", nullptr, 1, c.kv_size(), c.hidden},
          {LoraTarget::kV, "self_attn.v_proj", nullptr, 1, c.kv_size(), c.hidden},
          {LoraTarget::kO, "self_attn.o_proj", nullptr, 1, c.hidden, c.q_size()},
          {LoraTarget::kRouter, "mlp.router", "mlp.router.weight", 1, c.experts, c.hidden},
          {LoraTarget::kRouter, "mlp.router.linear", nullptr, 1, c.experts, c.hidden},
          {LoraTarget::kGateUp, "mlp.experts", "mlp.experts.gate_up_proj", c.experts, 2 * c.intermediate,
           c.hidden},
          {LoraTarget::kDown, "mlp.experts", "mlp.experts.down_proj", c.experts, c.hidden, c.intermediate},
          {LoraTarget::kGateUp, "mlp.experts.gate_up_projs", nullptr, 1, 2 * c.intermediate, c.hidden},
          {LoraTarget::kDown, "mlp.experts.down_projs", nullptr, 1, c.hidden, c.intermediate},
          {LoraTarget::kGate, "mlp.experts.gate_proj", nullptr, 1, c.intermediate, c.hidden},
          {LoraTarget::kUp, "mlp.experts.up_proj", nullptr, 1, c.intermediate, c.hidden},
          {LoraTarget::kDown, "mlp.experts.down_proj", nullptr, 1, c.hidden, c.intermediate}};
}

bool is_of(const Target& t, const std::optional<Place>& place) {
  return place && place->part == t.part && (place->expert >= 0) == place->part.starts_with(kOneExpert);
}

// peft 0.19 and later saves the factors of all experts of a layer either as those of the matrix, or as those
// of its transpose: 0.19.0 saves the transpose's with transformers 5, later ones with transformers 4.
enum class Orientation { kPlain, kTransposed };

// Both parameters of the experts have one name: the sizes tell which it is.
bool fits(const Target& t, const Pair& pair, Orientation orientation) {
  const auto &down = pair.down->shape, &up = pair.up->shape;
  const bool plain = orientation == Orientation::kPlain;
  return (plain || t.part == kExperts) && down.size() == 2 && up.size() == 2 &&
         down[1] == (plain ? t.cols : t.rows) && up[0] == (plain ? t.rows : t.cols) && down[0] == up[1] &&
         down[0] % t.count == 0;
}

// The orientations that an adapter certainly has: a square matrix fits either.
struct Orientations {
  bool plain = false, transposed = false;
};

// peft stacks the experts' factors: row e * rank + r of lora_A, column r * experts + e of lora_B.
std::vector<float> up_by_expert(const std::vector<float>& b, const LoraFactors& f, double scale) {
  std::vector<float> up(b.size());
  for (int64_t e = 0; e < f.count; ++e) {
    for (int64_t row = 0; row < f.rows; ++row) {
      for (int64_t r = 0; r < f.rank; ++r)
        up[(e * f.rows + row) * f.rank + r] =
            static_cast<float>(scale * b[row * f.rank * f.count + r * f.count + e]);
    }
  }
  return up;
}

// Turns factors of the transposed matrices, a and b, into those of the matrices.
void transpose(std::vector<float>& a, std::vector<float>& b, const LoraFactors& f) {
  std::vector<float> down(b.size()), up(a.size());
  for (int64_t e = 0; e < f.count; ++e) {
    for (int64_t r = 0; r < f.rank; ++r) {
      const int64_t row = e * f.rank + r, column = r * f.count + e, width = f.rank * f.count;
      for (int64_t i = 0; i < f.cols; ++i) down[row * f.cols + i] = b[i * width + column];
      for (int64_t i = 0; i < f.rows; ++i) up[i * width + column] = a[row * f.rows + i];
    }
  }
  a = std::move(down), b = std::move(up);
}

Result<LoraFactors> factors_of(const Target& t, const Place& place, const std::string& module,
                               const Pair& pair, const LoraConfig& lora, double scale,
                               Orientation orientation) {
  const std::string parameter =
      t.parameter == nullptr ? place.module : fmt::format("model.layers.{}.{}", place.layer, t.parameter);
  LoraFactors f{.target = t.target,
                .layer = place.layer,
                .expert = place.expert,
                .count = t.count,
                .rank = pair.down->shape[0] / t.count,
                .rows = t.rows,
                .cols = t.cols};
  if (f.rank != rank_of(lora, parameter))
    return invalid("{}: LoRA factors of '{}' have rank {}, adapter_config.json says {}",
                   pair.down->file->path(), module.substr(0, 120), f.rank, rank_of(lora, parameter));
  ASSIGN_OR_RETURN(f.down, lora_floats(*pair.down, module));
  ASSIGN_OR_RETURN(std::vector<float> b, lora_floats(*pair.up, module));
  if (orientation == Orientation::kTransposed) transpose(f.down, b, f);
  f.up = up_by_expert(b, f, scale * scale_of(lora, parameter));
  if (std::ranges::all_of(f.up, [](float v) { return std::isfinite(v); })) return f;
  return invalid("{}: LoRA factors of '{}' times their scale {:g} are beyond F32", pair.up->file->path(),
                 module.substr(0, 120), scale * scale_of(lora, parameter));
}

Orientations orientations_of(const std::map<std::string, Pair>& pairs, const ModelConfig& config) {
  Orientations found;
  for (const auto& [module, pair] : pairs) {
    if (pair.down == nullptr || pair.up == nullptr) continue;
    const std::optional<Place> place = place_of(module, config);
    for (const Target& t : targets_of(config)) {
      if (t.part != kExperts || !is_of(t, place)) continue;
      const bool plain = fits(t, pair, Orientation::kPlain),
                 transposed = fits(t, pair, Orientation::kTransposed);
      found.plain |= plain && !transposed, found.transposed |= transposed && !plain;
    }
  }
  return found;
}

Result<LoraFactors> read_pair(const std::string& module, const Pair& pair, const LoraConfig& lora,
                              double scale, const ModelConfig& config, Orientations certain) {
  const RawTensor& there = pair.down != nullptr ? *pair.down : *pair.up;
  if (pair.down == nullptr || pair.up == nullptr)
    return invalid("{}: '{}' has no {}", there.file->path(), module.substr(0, 120),
                   pair.down == nullptr ? "lora_A" : "lora_B");
  const std::optional<Place> place = place_of(module, config);
  bool known = false;
  for (const Target& t : targets_of(config)) {
    if (!is_of(t, place)) continue;
    known = true;
    const bool plain = fits(t, pair, Orientation::kPlain),
               transposed = fits(t, pair, Orientation::kTransposed);
    if (plain && transposed && certain.plain == certain.transposed && lora.may_be_transposed)
      return error(
          StatusCode::kUnsupported,
          "{}: the factors of '{}' fit the matrix and its transpose, of which peft 0.19 and later saves "
          "either; merge the adapter into its model, or, if peft after 0.19.0 and transformers 5 have "
          "trained it, remove 'peft_version' from adapter_config.json",
          there.file->path(), module.substr(0, 120));
    const bool exchanged = transposed && (!plain || (certain.transposed && !certain.plain));
    if (plain || transposed)
      return factors_of(t, *place, module, pair, lora, scale,
                        exchanged ? Orientation::kTransposed : Orientation::kPlain);
  }
  if (!known) return unsupported(there, module, "is not a matrix that can be adapted in this model");
  return invalid("{}: LoRA factors of '{}' are {} and {}, which is not this model's size", there.file->path(),
                 module.substr(0, 120), shape_text(pair.down->shape), shape_text(pair.up->shape));
}

}  // namespace

Result<std::vector<float>> lora_floats(const RawTensor& t, const std::string& module) {
  const std::optional<Format> format = float_format(t);
  if (!format)
    return error(StatusCode::kUnsupported, "{}: LoRA factors of '{}' are {}, expected F32, F16, BF16 or Q8_0",
                 t.file->path(), module.substr(0, 120), t.dtype);
  std::vector<float> values(static_cast<size_t>(element_count(t.shape).value_or(0)));
  read_row(dense_view(*format, 1, std::ssize(values), t.data.data()), 0, values);
  if (std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) return values;
  return invalid("{}: LoRA factors of '{}' hold a NaN or an infinity; the adapter is damaged", t.file->path(),
                 module.substr(0, 120));
}

Result<SavedModules> take_saved_modules(TensorMap& tensors, const LoraConfig& lora,
                                        const ModelConfig& config) {
  SavedModules saved;
  struct Module {
    bool listed;
    const char* name;
    MatrixView& view;
  };
  for (const Module& m : {Module{lora.saves_embedding, "model.embed_tokens", saved.embed},
                          Module{lora.saves_head, "lm_head", saved.head}}) {
    // peft has had three names for them.
    for (const char* ending : {".weight", ".modules_to_save.weight", ".modules_to_save.default.weight"}) {
      const auto it = tensors.tensors.find(fmt::format("base_model.model.{}{}", m.name, ending));
      // It saves them on its own where their vocabulary has changed.
      const bool may_stand = m.listed || std::string_view(ending) == ".weight";
      if (!may_stand || m.view.data != nullptr || it == tensors.tensors.end()) continue;
      const RawTensor& t = it->second;
      const std::optional<Format> format = float_format(t);
      if (!format || t.shape != std::vector<int64_t>{config.vocab, config.hidden})
        return invalid("{}: saved module '{}' is {} {}, expected [{}, {}] in F32, F16 or BF16",
                       t.file->path(), m.name, t.dtype, shape_text(t.shape), config.vocab, config.hidden);
      m.view = dense_view(*format, config.vocab, config.hidden, t.data.data());
      tensors.tensors.erase(it);
    }
    if (m.listed && m.view.data == nullptr)
      return invalid("{}: it has no tensor of the saved module '{}'", tensors.files[0]->path(), m.name);
  }
  return saved;
}

Result<std::vector<LoraFactors>> lora_factors(const TensorMap& tensors, const LoraConfig& lora, double scale,
                                              const ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto pairs, pair_up(tensors));
  const Orientations certain = orientations_of(pairs, config);
  std::vector<LoraFactors> all;
  for (const auto& [module, pair] : pairs) {
    ASSIGN_OR_RETURN(LoraFactors factors, read_pair(module, pair, lora, scale, config, certain));
    // By another spelling: layers.00, or once more behind .base_layer.
    const auto same = [&](const LoraFactors& f) {
      return f.layer == factors.layer && f.target == factors.target && f.expert == factors.expert;
    };
    if (std::ranges::any_of(all, same))
      return invalid("{}: '{}' is adapted twice", (pair.down != nullptr ? pair.down : pair.up)->file->path(),
                     module.substr(0, 120));
    all.push_back(std::move(factors));
  }
  return all;
}

}  // namespace moesaic
