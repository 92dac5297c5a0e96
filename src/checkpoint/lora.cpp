#include "checkpoint/lora.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "checkpoint/find_model.h"
#include "checkpoint/lora_tensors.h"
#include "checkpoint/widen.h"
#include "mx/block.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

using Factors = std::vector<LoraFactors>;
using Buffers = std::vector<Buffer>;

struct Adapter {
  Factors factors;
  SavedModules saved;  // views of `tensors`
  std::shared_ptr<const TensorMap> tensors;
};

// Adapters of the 20b's attention fit the 120b's first layers. base: the model's name, as files write it.
Status check_base(std::string base, const ModelConfig& config, const std::string& path) {
  constexpr std::pair<const char*, int> kModels[] = {{"gpt-oss-20b", 24}, {"gpt-oss-120b", 36}};
  base = lower_case(base);
  std::ranges::replace_if(
      base, [](char c) { return c == ' ' || c == '_' || c == ':'; }, '-');
  constexpr std::string_view kTuned = "-safeguard";  // OpenAI's own fine-tune of both
  if (const size_t at = base.find("gpt-oss-safeguard"); at != std::string::npos)
    base.erase(base.find(kTuned, at), kTuned.size());
  const auto says = [&](const char* name) { return base.find(name) != std::string::npos; };
  for (const auto& [name, layers] : kModels) {
    for (const auto& [own, own_layers] : kModels) {
      if (config.layers == own_layers && layers != own_layers && says(name) && !says(own))
        return invalid("{}: an adapter of {}; the model has the {} layers of {}", path, name, own_layers,
                       own);
    }
  }
  return {};
}

Result<Adapter> read_gguf_adapter(const std::string& path, double scale, const ModelConfig& config) {
  ASSIGN_OR_RETURN(auto mapped, MappedFile::open(path));
  ASSIGN_OR_RETURN(GgufFile file, read_gguf(std::move(mapped)));
  for (const char* key : {"general.base_model.0.name", "general.base_model.0.repo_url"}) {
    if (const auto* base = file.get<std::string>(key)) RETURN_IF_ERROR(check_base(*base, config, path));
  }
  RETURN_IF_ERROR(widen(file.tensors));
  ASSIGN_OR_RETURN(Factors factors, gguf_lora_factors(file, path, scale, config));
  if (factors.empty()) return invalid("{}: it holds no tensors", path);
  for (const auto& part : file.tensors.files) RETURN_IF_ERROR(part->intact());
  return Adapter{.factors = std::move(factors)};
}

Result<Adapter> read_adapter(const std::string& text, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const LoraChoice choice, lora_choice(text));
  ASSIGN_OR_RETURN(const std::string folder, find_adapter(choice.folder, model_places()));
  if (!is_folder(folder)) return read_gguf_adapter(folder, choice.scale, config);
  const std::string config_path = (fs::path(folder) / kAdapterConfig).string(),
                    path = (fs::path(folder) / "adapter_model.safetensors").string();
  ASSIGN_OR_RETURN(const OrderedJson json, read_ordered_json_file(config_path));
  ASSIGN_OR_RETURN(const LoraConfig lora, lora_config(json, config_path));
  RETURN_IF_ERROR(check_base(lora.base_model, config, config_path));
  if (!is_there(path))
    return error(StatusCode::kNotFound, "{}: no adapter_model.safetensors{}", folder,
                 is_there(fs::path(folder) / "adapter_model.bin")
                     ? "; adapter_model.bin is not read: save it again with safe_serialization=True"
                     : "");
  auto tensors = std::make_shared<TensorMap>();
  ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  RETURN_IF_ERROR(read_safetensors(std::move(file), *tensors));
  Adapter adapter;
  ASSIGN_OR_RETURN(adapter.saved, take_saved_modules(*tensors, lora, config));
  ASSIGN_OR_RETURN(adapter.factors, lora_factors(*tensors, lora, choice.scale, config));
  const bool saves = adapter.saved.embed.data != nullptr || adapter.saved.head.data != nullptr;
  if (adapter.factors.empty() && !saves) return invalid("{}: it holds no tensors", path);
  if (saves && choice.scale != 1)
    return error(StatusCode::kUnsupported, "{}: whole modules (modules_to_save) have no scale other than 1",
                 path);
  for (const auto& mapped : tensors->files) RETURN_IF_ERROR(mapped->intact());
  adapter.tensors = std::move(tensors);
  return adapter;
}

Result<float*> allocate(int64_t elements, Buffers& buffers) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(static_cast<size_t>(elements) * sizeof(float)));
  buffers.push_back(std::move(buffer));
  return buffers.back().as<float>();
}

MatrixView f32_view(int64_t rows, int64_t cols, const float* data) {
  return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(data));
}

// The place of a matrix among those that are joined into one, such as q, k and v.
struct Rows {
  LoraTarget target;
  int64_t first = 0, step = 1;
};
// Factors of one layer that are applied together.
struct Part {
  const LoraFactors* factors;
  Rows place;
  bool adapts(int64_t expert) const { return factors->expert < 0 || factors->expert == expert; }
};

// The ranks of an expert's factors add up. This is the greatest sum of any expert, rounded up to a multiple
// of 32.
int64_t joint_rank(const std::vector<Part>& parts, int64_t count) {
  int64_t most = 0;
  for (int64_t e = 0; e < count; ++e) {
    int64_t rank = 0;
    for (const Part& p : parts) rank += p.adapts(e) ? p.factors->rank : 0;
    most = std::max(most, rank);
  }
  return (most + mx::kBlock - 1) / mx::kBlock * mx::kBlock;
}

// All parts along one rank: down one below the other, up block by block.
Result<LowRankExperts> join(const std::vector<Part>& parts, int64_t count, int64_t rows, Buffers& buffers) {
  if (parts.empty()) return LowRankExperts();
  const int64_t rank = joint_rank(parts, count), cols = parts[0].factors->cols;
  ASSIGN_OR_RETURN(float* const down, allocate(count * rank * cols, buffers));
  ASSIGN_OR_RETURN(float* const up, allocate(count * rows * rank, buffers));
  for (int64_t e = 0; e < count; ++e) {
    int64_t at = 0;
    for (const Part& part : parts) {
      if (!part.adapts(e)) continue;
      const LoraFactors& f = *part.factors;
      const int64_t from = f.expert < 0 ? e : 0;
      std::copy_n(f.down.data() + from * f.rank * cols, f.rank * cols, down + (e * rank + at) * cols);
      for (int64_t r = 0; r < f.rows; ++r)
        std::copy_n(f.up.data() + (from * f.rows + r) * f.rank, f.rank,
                    up + (e * rows + part.place.first + r * part.place.step) * rank + at);
      at += f.rank;
    }
  }
  const int64_t stride = static_cast<int64_t>(sizeof(float)) * rank;
  return LowRankExperts{{f32_view(rank, cols, down), count, stride * cols, 0},
                        {f32_view(rows, rank, up), count, stride * rows, 0}};
}

LowRank only(const LowRankExperts& low) { return low.empty() ? LowRank() : low.at(0); }

// Those of the layer with one of the targets.
std::vector<Part> parts_of(const Factors& all, int layer, std::initializer_list<Rows> targets) {
  std::vector<Part> parts;
  for (const LoraFactors& f : all) {
    for (const Rows& rows : targets) {
      if (f.layer == layer && f.target == rows.target) parts.push_back({&f, rows});
    }
  }
  return parts;
}

Result<LayerAdapter> layer_adapter(const Factors& all, int layer, const ModelConfig& c, Buffers& buffers) {
  const auto qkv =
      parts_of(all, layer,
               {{LoraTarget::kQ}, {LoraTarget::kK, c.q_size()}, {LoraTarget::kV, c.q_size() + c.kv_size()}});
  LayerAdapter a;
  ASSIGN_OR_RETURN(const LowRankExperts joined, join(qkv, 1, c.q_size() + 2 * c.kv_size(), buffers));
  ASSIGN_OR_RETURN(const LowRankExperts o,
                   join(parts_of(all, layer, {{LoraTarget::kO}}), 1, c.hidden, buffers));
  a.qkv = only(joined), a.o = only(o);
  const auto gate_up =
      parts_of(all, layer, {{LoraTarget::kGateUp}, {LoraTarget::kGate, 0, 2}, {LoraTarget::kUp, 1, 2}});
  ASSIGN_OR_RETURN(a.gate_up, join(gate_up, c.experts, 2 * c.intermediate, buffers));
  ASSIGN_OR_RETURN(a.down, join(parts_of(all, layer, {{LoraTarget::kDown}}), c.experts, c.hidden, buffers));
  return a;
}

// row += up[r] down, in double.
void add_row(const LoraFactors& f, int64_t r, std::vector<double>& row) {
  for (int64_t k = 0; k < f.rank; ++k) {
    const double factor = f.up[r * f.rank + k];
    for (int64_t c = 0; c < f.cols; ++c) row[c] += factor * f.down[k * f.cols + c];
  }
}

Status merge_router(const Factors& all, int layer, MatrixView& router, Buffers& buffers) {
  const std::vector<Part> parts = parts_of(all, layer, {{LoraTarget::kRouter}});
  if (parts.empty()) return {};
  ASSIGN_OR_RETURN(float* const merged, allocate(router.rows * router.cols, buffers));
  std::vector<float> stored(static_cast<size_t>(router.cols));
  for (int64_t r = 0; r < router.rows; ++r) {
    read_row(router, r, stored);
    std::vector<double> row(stored.begin(), stored.end());
    for (const Part& p : parts) add_row(*p.factors, r, row);
    std::ranges::transform(row, merged + r * router.cols, [](double v) { return static_cast<float>(v); });
  }
  router = f32_view(router.rows, router.cols, merged);
  return {};
}

// A matrix that the adapter brings whole. Two adapters cannot both bring it.
Status replace(MatrixView& matrix, const MatrixView& saved, bool& replaced, const std::string& adapter) {
  if (saved.data == nullptr) return {};
  if (std::exchange(replaced, true))
    return invalid("{}: it brings an embedding or a head (modules_to_save), and so does an earlier adapter",
                   adapter);
  matrix = saved;
  return {};
}

bool same_folder(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

}  // namespace

Result<LoraChoice> lora_choice(const std::string& text) {
  LoraChoice choice{.folder = text};
  if (is_there(text)) return choice;
  const size_t colon = text.rfind(':');
  if (text.empty() || colon == 0)
    return invalid("LoRA adapter '{}': its folder is empty; expected FOLDER or FOLDER:SCALE", text);
  if (colon == std::string::npos) return choice;
  choice.scale = number_of<decltype(choice.scale)>(std::string_view(text).substr(colon + 1)).value_or(NAN);
  if (!std::isfinite(choice.scale))
    return invalid(
        "LoRA adapter '{}': no such folder, and '{}' is not a scale; expected FOLDER or FOLDER:SCALE", text,
        text.substr(colon + 1));
  choice.folder.resize(colon);
  return choice;
}

Status apply_lora(std::span<const std::string> adapters, const ModelConfig& config, ModelWeights& weights) {
  if (adapters.empty()) return {};
  struct Storage {
    Buffers buffers;
    std::vector<std::shared_ptr<const TensorMap>> tensors;
  };
  auto storage = std::make_shared<Storage>();
  Buffers* const buffers = &storage->buffers;
  Factors all;
  bool embed = false, head = false;
  const bool tied = weights.head.data == weights.embed.data;
  for (const std::string& text : adapters) {
    ASSIGN_OR_RETURN(Adapter adapter, read_adapter(text, config));
    std::ranges::move(adapter.factors, std::back_inserter(all));
    RETURN_IF_ERROR(replace(weights.embed, adapter.saved.embed, embed, text));
    RETURN_IF_ERROR(replace(weights.head, adapter.saved.head, head, text));
    storage->tensors.push_back(std::move(adapter.tensors));
  }
  if (tied && embed && !head) weights.head = weights.embed;
  if (embed || head) weights.pools.clear();
  for (int layer = 0; layer < config.layers; ++layer) {
    ASSIGN_OR_RETURN(LayerAdapter adapter, layer_adapter(all, layer, config, *buffers));
    weights.adapters.push_back(adapter);
    RETURN_IF_ERROR(merge_router(all, layer, weights.layers[static_cast<size_t>(layer)].router, *buffers));
  }
  weights.adapter_storage = std::move(storage);
  return {};
}

std::string unused_adapter(const std::string& model, std::span<const std::string> adapters) {
  const Result<std::string> path = find_model(model, model_places());
  if (!path.ok()) return {};
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(path.value(), ignored) ? fs::path(path.value()) : fs::path(path.value()).parent_path();
  if (!is_there(folder / kAdapterConfig)) return {};
  for (const std::string& text : adapters) {
    const Result<LoraChoice> choice = lora_choice(text);
    if (choice.ok() && same_folder(choice->folder, folder.empty() ? "." : folder.string())) return {};
  }
  const std::string name = folder.empty() ? "." : folder.string();
  return fmt::format("{} holds a LoRA adapter that is not applied; to apply it: --lora {}", name, name);
}

}  // namespace moesaic
