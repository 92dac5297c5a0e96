#include "checkpoint/lora.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/buffer.h"
#include "base/error.h"
#include "checkpoint/find_model.h"
#include "checkpoint/lora_tensors.h"
#include "mx/block.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

using Factors = std::vector<LoraFactors>;
using Buffers = std::vector<Buffer>;

Result<Factors> read_adapter(const std::string& text, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const LoraChoice choice, lora_choice(text));
  ASSIGN_OR_RETURN(const std::string folder, find_adapter(choice.folder, model_places()));
  const std::string config_path = (fs::path(folder) / kAdapterConfig).string(),
                    path = (fs::path(folder) / "adapter_model.safetensors").string();
  ASSIGN_OR_RETURN(const OrderedJson json, read_ordered_json_file(config_path));
  ASSIGN_OR_RETURN(const LoraConfig lora, lora_config(json, config_path));
  if (!is_there(path))
    return error(StatusCode::kNotFound, "{}: no adapter_model.safetensors{}", folder,
                 is_there(fs::path(folder) / "adapter_model.bin")
                     ? "; adapter_model.bin is not read: save it again with safe_serialization=True"
                     : "");
  TensorMap tensors;
  ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  RETURN_IF_ERROR(read_safetensors(std::move(file), tensors));
  ASSIGN_OR_RETURN(Factors factors, lora_factors(tensors, lora, choice.scale, config));
  if (factors.empty()) return invalid("{}: it holds no tensors", path);
  for (const auto& mapped : tensors.files) RETURN_IF_ERROR(mapped->intact());
  return factors;
}

Result<float*> allocate(int64_t elements, Buffers& buffers) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(static_cast<size_t>(elements) * sizeof(float)));
  buffers.push_back(std::move(buffer));
  return buffers.back().as<float>();
}

MatrixView f32_view(int64_t rows, int64_t cols, const float* data) {
  return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(data));
}

// Factors of one layer that are applied together: those of q, k and v, say, each from the row on at which its
// matrix begins.
struct Part {
  const LoraFactors* factors;
  int64_t first_row;
};

// All parts along one rank: down one below the other, up block by block.
Result<LowRankExperts> join(const std::vector<Part>& parts, int64_t rows, Buffers& buffers) {
  if (parts.empty()) return LowRankExperts();
  const LoraFactors& first = *parts[0].factors;
  int64_t rank = 0;
  for (const Part& p : parts) rank += p.factors->rank;
  rank = (rank + mx::kBlock - 1) / mx::kBlock * mx::kBlock;
  ASSIGN_OR_RETURN(float* const down, allocate(first.count * rank * first.cols, buffers));
  ASSIGN_OR_RETURN(float* const up, allocate(first.count * rows * rank, buffers));
  for (int64_t e = 0; e < first.count; ++e) {
    int64_t at = 0;
    for (const auto& [f, first_row] : parts) {
      std::copy_n(f->down.data() + e * f->rank * f->cols, f->rank * f->cols,
                  down + (e * rank + at) * f->cols);
      for (int64_t r = 0; r < f->rows; ++r)
        std::copy_n(f->up.data() + (e * f->rows + r) * f->rank, f->rank,
                    up + (e * rows + first_row + r) * rank + at);
      at += f->rank;
    }
  }
  const int64_t stride = static_cast<int64_t>(sizeof(float)) * rank;
  return LowRankExperts{{f32_view(rank, first.cols, down), first.count, stride * first.cols, 0},
                        {f32_view(rows, rank, up), first.count, stride * rows, 0}};
}

LowRank only(const LowRankExperts& low) { return low.empty() ? LowRank() : low.at(0); }

// Those of the layer with one of the targets.
std::vector<Part> parts_of(const Factors& all, int layer,
                           std::initializer_list<std::pair<LoraTarget, int64_t>> targets) {
  std::vector<Part> parts;
  for (const LoraFactors& f : all) {
    for (const auto& [target, first_row] : targets) {
      if (f.layer == layer && f.target == target) parts.push_back({&f, first_row});
    }
  }
  return parts;
}

Result<LayerAdapter> layer_adapter(const Factors& all, int layer, const ModelConfig& c, Buffers& buffers) {
  const auto qkv = parts_of(
      all, layer,
      {{LoraTarget::kQ, 0}, {LoraTarget::kK, c.q_size()}, {LoraTarget::kV, c.q_size() + c.kv_size()}});
  LayerAdapter a;
  ASSIGN_OR_RETURN(const LowRankExperts joined, join(qkv, c.q_size() + 2 * c.kv_size(), buffers));
  ASSIGN_OR_RETURN(const LowRankExperts o,
                   join(parts_of(all, layer, {{LoraTarget::kO, 0}}), c.hidden, buffers));
  a.qkv = only(joined), a.o = only(o);
  ASSIGN_OR_RETURN(a.gate_up,
                   join(parts_of(all, layer, {{LoraTarget::kGateUp, 0}}), 2 * c.intermediate, buffers));
  ASSIGN_OR_RETURN(a.down, join(parts_of(all, layer, {{LoraTarget::kDown, 0}}), c.hidden, buffers));
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
  const std::vector<Part> parts = parts_of(all, layer, {{LoraTarget::kRouter, 0}});
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
  const char *const begin = text.data() + colon + 1, *const end = text.data() + text.size();
  const auto [next, code] = std::from_chars(begin, end, choice.scale);
  if (code != std::errc() || next != end || begin == end || !std::isfinite(choice.scale))
    return invalid(
        "LoRA adapter '{}': no such folder, and '{}' is not a scale; expected FOLDER or FOLDER:SCALE", text,
        text.substr(colon + 1));
  choice.folder.resize(colon);
  return choice;
}

Status apply_lora(std::span<const std::string> adapters, const ModelConfig& config, ModelWeights& weights) {
  if (adapters.empty()) return {};
  Factors all;
  for (const std::string& text : adapters) {
    ASSIGN_OR_RETURN(Factors factors, read_adapter(text, config));
    std::ranges::move(factors, std::back_inserter(all));
  }
  auto buffers = std::make_shared<Buffers>();
  for (int layer = 0; layer < config.layers; ++layer) {
    ASSIGN_OR_RETURN(LayerAdapter adapter, layer_adapter(all, layer, config, *buffers));
    weights.adapters.push_back(adapter);
    RETURN_IF_ERROR(merge_router(all, layer, weights.layers[static_cast<size_t>(layer)].router, *buffers));
  }
  weights.adapter_storage = std::move(buffers);
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
