#include "checkpoint/eagle3.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "base/error.h"
#include "checkpoint/eagle3_gguf.h"
#include "checkpoint/find_model.h"
#include "checkpoint/weight_files.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A tensor's name without what differs between the forms: a prefix, and the layer's name.
std::string plain_name(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  for (const std::string_view layer : {"midlayer.", "layers.0."}) {
    if (name.starts_with(layer)) return "layer." + std::string(name.substr(layer.size()));
  }
  return std::string(name);
}

// True for tensors of training, and for those that can be computed again.
bool is_needless(const std::string& name) {
  return name == "t2d" || name.starts_with("verifier_") || name.ends_with("rotary_emb.inv_freq");
}

class Tensors {
 public:
  explicit Tensors(std::shared_ptr<const TensorMap> map) : map_(std::move(map)) {}

  // By plain names. An error for one that stands there twice or belongs to another kind of head.
  Status index(const std::string& file) {
    for (const auto& [name, tensor] : map_->tensors) {
      const std::string plain = plain_name(name), shown = name.substr(0, 120);
      if (plain == "mask_hidden" || plain.starts_with("layers."))
        return error(StatusCode::kUnsupported,
                     "{}: tensor '{}': a P-EAGLE head, or one of several layers, is not supported; EAGLE3 "
                     "heads with one layer are",
                     file, shown);
      if (is_needless(plain)) continue;
      if (!by_name_.emplace(plain, &tensor).second)
        return invalid("{}: tensor '{}' stands there twice, with another prefix", file, shown);
    }
    return {};
  }

  const RawTensor* take(const std::string& name) {
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) return nullptr;
    const RawTensor* tensor = it->second;
    by_name_.erase(it);
    return tensor;
  }

  // A view without data where it is absent. A vector is one row.
  Result<MatrixView> matrix(const std::string& name) {
    const RawTensor* t = take(name);
    if (t == nullptr) return MatrixView();
    const auto format = float_format(*t);
    if (!format)
      return error(StatusCode::kUnsupported, "{}: tensor '{}' is {}, expected BF16, F16, F32 or Q8_0",
                   t->file->path(), name, t->dtype);
    if (t->shape.empty() || t->shape.size() > 2)
      return invalid("{}: tensor '{}' has {} dimensions, expected 1 or 2", t->file->path(), name,
                     t->shape.size());
    return dense_view(*format, t->shape.size() == 2 ? t->shape[0] : 1, t->shape.back(), t->data.data());
  }

  // A tensor that nobody took would have changed the numbers.
  Status check_all_taken(const std::string& file) const {
    if (by_name_.empty()) return {};
    return error(StatusCode::kUnsupported, "{}: tensor '{}' is not known in an EAGLE3 head", file,
                 by_name_.begin()->first.substr(0, 120));
  }

  std::shared_ptr<const TensorMap> map() const { return map_; }

 private:
  std::shared_ptr<const TensorMap> map_;
  std::map<std::string, const RawTensor*> by_name_;
};

// d2t: what to add to a draft token to get the target's.
Result<std::vector<int32_t>> target_ids(const RawTensor* d2t, const Eagle3Config& c) {
  std::vector<int32_t> ids;
  if (d2t == nullptr && c.draft_vocab != c.vocab)
    return invalid("{}: tensor 'd2t' is missing, with a draft vocabulary of {} tokens out of {}", c.name,
                   c.draft_vocab, c.vocab);
  const bool wide = d2t != nullptr && d2t->dtype == "I64";
  if (d2t != nullptr && !wide && d2t->dtype != "I32")
    return invalid("{}: 'd2t' is {}, expected I64 or I32", c.name, d2t->dtype);
  if (d2t != nullptr && (d2t->shape.size() != 1 || d2t->shape[0] != c.draft_vocab))
    return invalid("{}: 'd2t' is not a list of {}, the draft vocabulary", c.name, c.draft_vocab);
  for (int d = 0; d < c.draft_vocab; ++d) {
    int64_t offset = 0;
    int32_t narrow = 0;
    if (wide) std::memcpy(&offset, d2t->data.data() + d * sizeof offset, sizeof offset);
    if (d2t != nullptr && !wide) {
      std::memcpy(&narrow, d2t->data.data() + d * sizeof narrow, sizeof narrow);
      offset = narrow;
    }
    if (offset < -d || offset >= c.vocab - d)
      return invalid("{}: 'd2t' leads draft token {} outside the vocabulary of {}, by {}", c.name, d, c.vocab,
                     offset);
    ids.push_back(d + static_cast<int32_t>(offset));
  }
  return ids;
}

Status check_norms(const Eagle3Weights& w, const Eagle3Norms& norms, const std::string& file) {
  if (norms.before_fc && w.input_norm.data == nullptr && w.fc_norms.empty())
    return invalid("{}: 'norm_before_fc' is set, but tensor 'input_norm' is missing", file);
  if (norms.each_tap && w.fc_norms.empty())
    return invalid("{}: 'fc_norm' is set, but tensor 'fc_norm.0' is missing", file);
  if (norms.none && (w.input_norm.data != nullptr || !w.fc_norms.empty()))
    return invalid("{}: 'norm_before_fc' is false, but the norm's tensor is there", file);
  return {};
}

std::string architecture_in(const std::string& path) {
  const auto file = MappedFile::open(path);
  return file.ok() ? gguf_architecture(*file.value()) : "";
}

// The head's file. A folder may hold the model beside it, which a name stands for otherwise.
Result<std::string> head_file(const std::string& found) {
  if (architecture_in(found) == "eagle3") return found;
  const fs::path folder = fs::path(found).parent_path();
  std::vector<std::string> heads;
  for (const std::string& name : gguf_models(names_in(folder)))
    if (architecture_in((folder / name).string()) == "eagle3") heads.push_back(name);
  if (heads.size() == 1) return (folder / heads.front()).string();
  if (heads.size() > 1)
    return invalid("{}: several draft heads; name one of them: {}", folder.string(), listed(heads));
  return found;
}

// A model's name, too. Of a repository the head may be here alone.
Result<std::string> find_head(const std::string& name, const ModelPlaces& places) {
  Result<std::string> model = find_model(name, places);
  if (model.ok()) return model;
  Result<std::string> head = find_adapter(name, places);
  return head.ok() || head.status().code() == StatusCode::kInvalidArgument ? head : model;
}

Result<Eagle3Head> open_gguf_head(const std::string& path, const ModelConfig& target) {
  ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  ASSIGN_OR_RETURN(GgufFile gguf, read_gguf(file));
  ASSIGN_OR_RETURN(Eagle3Gguf read, eagle3_from_gguf(std::move(gguf), path, target));
  Eagle3Head head{.config = std::move(read.config)};
  ASSIGN_OR_RETURN(head.weights, eagle3_weights(std::move(read.tensors), head.config, read.norms));
  RETURN_IF_ERROR(file->intact());
  return head;
}

Result<Eagle3Head> open_head(const std::string& path, const ModelConfig& target) {
  ASSIGN_OR_RETURN(const std::string found, find_head(path, model_places()));
  if (!is_folder(found)) {
    ASSIGN_OR_RETURN(const std::string file, head_file(found));
    return open_gguf_head(file, target);
  }
  const fs::path folder = found;
  const std::string config_path = (folder / "config.json").string();
  if (!is_there(config_path))
    return error(StatusCode::kNotFound,
                 "{}: no config.json; a draft head is a folder with config.json and "
                 ".safetensors files",
                 found);
  ASSIGN_OR_RETURN(const Json json, read_json_file(config_path));
  Eagle3Head head;
  Eagle3Norms norms;
  ASSIGN_OR_RETURN(head.config, eagle3_config(json, config_path, target, norms));
  ASSIGN_OR_RETURN(const std::set<std::string> files, safetensors_in(folder));
  ASSIGN_OR_RETURN(const auto tensors, read_safetensors(folder, files));
  head.config.name = tensors->files[0]->path();
  ASSIGN_OR_RETURN(head.weights, eagle3_weights(tensors, head.config, norms));
  for (const auto& file : tensors->files) RETURN_IF_ERROR(file->intact());
  return head;
}

}  // namespace

Result<Eagle3Weights> eagle3_weights(std::shared_ptr<const TensorMap> map, const Eagle3Config& c,
                                     const Eagle3Norms& norms) {
  Tensors tensors(std::move(map));
  RETURN_IF_ERROR(tensors.index(c.name));
  Eagle3Weights w;
  const std::pair<const char*, MatrixView*> names[] = {
      {"fc.weight", &w.fc},
      {"input_norm.weight", &w.input_norm},
      {"layer.input_layernorm.weight", &w.embed_norm},
      {"layer.hidden_norm.weight", &w.hidden_norm},
      {"layer.self_attn.q_proj.weight", &w.q},
      {"layer.self_attn.k_proj.weight", &w.k},
      {"layer.self_attn.v_proj.weight", &w.v},
      {"layer.self_attn.o_proj.weight", &w.o},
      {"layer.post_attention_layernorm.weight", &w.mlp_norm},
      {"layer.mlp.gate_proj.weight", &w.gate},
      {"layer.mlp.up_proj.weight", &w.up},
      {"layer.mlp.down_proj.weight", &w.down},
      {"norm.weight", &w.norm},
      {"lm_head.weight", &w.head},
      {"embed_tokens.weight", &w.embed},
  };
  for (const auto& [name, view] : names) {
    ASSIGN_OR_RETURN(*view, tensors.matrix(name));
  }
  for (size_t i = 0; i < c.taps.size(); ++i) {
    ASSIGN_OR_RETURN(const MatrixView norm, tensors.matrix(fmt::format("fc_norm.{}.weight", i)));
    if (norm.data == nullptr) break;
    w.fc_norms.push_back(norm);
  }
  ASSIGN_OR_RETURN(w.target_ids, target_ids(tensors.take("d2t"), c));
  RETURN_IF_ERROR(tensors.check_all_taken(c.name));
  RETURN_IF_ERROR(check_norms(w, norms, c.name));
  RETURN_IF_ERROR(validate_shapes(w, c));
  w.storage = tensors.map();
  return w;
}

Result<Eagle3Head> open_eagle3(const std::string& path, const ModelConfig& target) {
  Result<Eagle3Head> result = open_head(path, target);
  if (result.ok()) return result;
  return Status(result.status().code(), printable(result.status().message()));
}

}  // namespace moesaic
