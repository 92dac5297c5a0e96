#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "checkpoint/assemble.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/dummy.h"
#include "checkpoint/find_model.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/json.h"
#include "checkpoint/weight_files.h"
#include "checkpoint/widen.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// ModelOpt's folders say in a file of their own how they are quantised; weights in MXFP4 are the usual ones.
Status check_modelopt(const fs::path& folder) {
  const std::string path = (folder / "hf_quant_config.json").string();
  const std::string algorithm = string_or(member(small_json(path), "quantization"), "quant_algo", "");
  if (algorithm.empty() || algorithm == "MXFP4") return {};
  return error(StatusCode::kUnsupported,
               "{}: weights quantised to {} by ModelOpt are not supported; use the original ones "
               "(openai/gpt-oss-20b or gpt-oss-120b, MXFP4) or a GGUF file",
               path, algorithm.substr(0, 40));
}

Result<Checkpoint> open_folder(const fs::path& folder) {
  if (!is_there(folder / "config.json"))
    return error(StatusCode::kNotFound,
                 "{}: no config.json; a model folder holds config.json and .safetensors files",
                 folder.string());
  ASSIGN_OR_RETURN(const Json json, read_json_file((folder / "config.json").string()));
  const std::string config_name = (folder / "config.json").string();
  // Before the tensors, whose types and shapes say less. OpenAI's own config has no type.
  if (member(json, "model_type").is_string()) RETURN_IF_ERROR(check_hf_kind(json, config_name));
  RETURN_IF_ERROR(check_modelopt(folder));
  // The files' tensors all count, wherever the index has them, as in transformers.
  ASSIGN_OR_RETURN(const std::set<std::string> files, weight_files(folder));
  ASSIGN_OR_RETURN(const std::shared_ptr<TensorMap> tensors, read_safetensors(folder, files));
  const bool original = tensors->find("embedding.weight") != nullptr;
  Checkpoint checkpoint{.kind = original ? "original" : "safetensors"};
  ASSIGN_OR_RETURN(checkpoint.config,
                   original ? config_from_original(json, config_name) : config_from_hf(json, config_name));
  checkpoint.tensors = tensors->list();
  ASSIGN_OR_RETURN(checkpoint.weights, original ? assemble_original(tensors, checkpoint.config)
                                                : assemble_hf(tensors, checkpoint.config));
  for (const fs::path& place : {folder, folder.parent_path()}) {
    if (checkpoint.tokenizer.json_path.empty() && is_there(place / "tokenizer.json"))
      checkpoint.tokenizer.json_path = (place / "tokenizer.json").string();
  }
  return checkpoint;
}

// A part of a split model says which one it is, and of how many.
Status check_part(const GgufFile& file, const std::string& path, size_t index, size_t parts) {
  const auto number = [&](const char* key, int64_t missing) {
    const auto* value = file.get<int64_t>(key);
    return value != nullptr ? *value : missing;
  };
  const int64_t count = number("split.count", 1), part = number("split.no", 0);
  if (count <= 1 && parts == 1) return {};
  if (parts == 1)
    return invalid(
        "{}: part {} of a model in {} parts, which are found by their names: NAME-00001-of-{:05}.gguf", path,
        part + 1, count, count);
  if (count == static_cast<int64_t>(parts) && part == static_cast<int64_t>(index)) return {};
  return invalid("{}: it says that it is part {} of {}; its name says {} of {}", path, part + 1, count,
                 index + 1, parts);
}

// All parts of a split model; the first one has the metadata.
Result<GgufFile> read_parts(const std::string& path) {
  RETURN_IF_ERROR(all_weights_there(path));
  const std::vector<std::string> names = gguf_parts(path);
  GgufFile all;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSIGN_OR_RETURN(auto mapped, MappedFile::open(names[i]));
    ASSIGN_OR_RETURN(GgufFile part, read_gguf(std::move(mapped)));
    RETURN_IF_ERROR(check_part(part, names[i], i, names.size()));
    if (i == 0) {
      all = std::move(part);
    } else {
      RETURN_IF_ERROR(all.tensors.append(std::move(part.tensors)));
    }
  }
  return all;
}

Result<Checkpoint> open_gguf(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile file, read_parts(path));
  Checkpoint checkpoint{.kind = "gguf"};
  ASSIGN_OR_RETURN(checkpoint.config, config_from_gguf(file, path));
  checkpoint.tokenizer = take_gguf_tokenizer(file, checkpoint.config);
  auto tensors = std::make_shared<TensorMap>(std::move(file.tensors));
  checkpoint.tensors = tensors->list();
  RETURN_IF_ERROR(widen(*tensors));
  ASSIGN_OR_RETURN(checkpoint.weights, assemble_gguf(tensors, checkpoint.config, file.written_by_ollama(),
                                                     &checkpoint.conversions));
  std::ranges::move(widened_formats(checkpoint.tensors), std::back_inserter(checkpoint.conversions));
  return checkpoint;
}

// By its first bytes: Ollama's blobs have no suffix.
bool is_gguf(const std::string& path) {
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

Result<Checkpoint> open_any(const std::string& name) {
  constexpr std::string_view kDummy = "dummy:";
  if (name.starts_with(kDummy)) return make_dummy(name.substr(kDummy.size()));
  ASSIGN_OR_RETURN(const std::string path, find_model(name, model_places()));
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const bool gguf =
      !folder && (path.ends_with(".gguf") || (fs::is_regular_file(path, ignored) && is_gguf(path)));
  if (!folder && !gguf)
    return invalid("{}: not a model; expected a folder with config.json, a .gguf file or dummy:NAME", path);
  ASSIGN_OR_RETURN(Checkpoint checkpoint, folder ? open_folder(path) : open_gguf(path));
  checkpoint.path = path;
  return checkpoint;
}

}  // namespace

Result<Checkpoint> open_checkpoint(const std::string& path) {
  Result<Checkpoint> result = open_any(path);
  if (result.ok()) return result;
  return Status(result.status().code(), printable(result.status().message()));
}

}  // namespace moesaic
