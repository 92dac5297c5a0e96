#include "checkpoint/checkpoint.h"

#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/assemble.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/dummy.h"
#include "checkpoint/gguf_tokenizer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Result<Json> read_json_file(const fs::path& path) {
  ASSIGN_OR_RETURN(const auto file, MappedFile::open(path.string()));
  constexpr size_t kMaxJson = 256 << 20;
  if (file->bytes().size() > kMaxJson)
    return invalid("{}: larger than {} MB, not a JSON file of a model", path.string(), kMaxJson >> 20);
  return parse_json({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()},
                    path.string());
}

// The files named by an index, each of which must be a plain name in the same folder.
Result<std::set<std::string>> indexed_files(const fs::path& index) {
  ASSIGN_OR_RETURN(const Json json, read_json_file(index));
  const auto it = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || it == json.end() || !it->is_object())
    return invalid("{}: it has no weight_map", index.string());
  std::set<std::string> names;
  for (const Json& name : *it) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.empty() || text.find('/') != std::string::npos)
      return invalid("{}: '{}' is not a file name", index.string(), text.substr(0, 80));
    names.insert(text);
  }
  return names;
}

Result<std::set<std::string>> weight_files(const fs::path& folder) {
  if (is_there(folder / "model.safetensors.index.json"))
    return indexed_files(folder / "model.safetensors.index.json");
  if (is_there(folder / "model.safetensors")) return std::set<std::string>{"model.safetensors"};
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") names.insert(entry.path().filename().string());
  }
  if (names.empty())
    return error(StatusCode::kNotFound, "{}: no .safetensors file in this folder", folder.string());
  return names;
}

Result<Checkpoint> open_folder(const fs::path& folder) {
  if (!is_there(folder / "config.json"))
    return error(StatusCode::kNotFound,
                 "{}: no config.json; a model folder holds config.json and .safetensors files",
                 folder.string());
  ASSIGN_OR_RETURN(const Json json, read_json_file(folder / "config.json"));
  ASSIGN_OR_RETURN(const std::set<std::string> names, weight_files(folder));
  auto tensors = std::make_shared<TensorMap>();
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(auto file, MappedFile::open((folder / name).string()));
    RETURN_IF_ERROR(read_safetensors(std::move(file), *tensors));
  }
  const std::string config_name = (folder / "config.json").string();
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

Result<Checkpoint> open_gguf(const std::string& path) {
  ASSIGN_OR_RETURN(auto mapped, MappedFile::open(path));
  ASSIGN_OR_RETURN(GgufFile file, read_gguf(std::move(mapped)));
  Checkpoint checkpoint{.kind = "gguf"};
  ASSIGN_OR_RETURN(checkpoint.config, config_from_gguf(file, path));
  checkpoint.tokenizer = take_gguf_tokenizer(file, checkpoint.config);
  auto tensors = std::make_shared<TensorMap>(std::move(file.tensors));
  checkpoint.tensors = tensors->list();
  ASSIGN_OR_RETURN(checkpoint.weights, assemble_gguf(tensors, checkpoint.config));
  return checkpoint;
}

Result<Checkpoint> open_any(const std::string& path) {
  constexpr std::string_view kDummy = "dummy:";
  if (path.starts_with(kDummy)) return make_dummy(path.substr(kDummy.size()));
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return open_folder(path);
  if (!is_there(path)) return error(StatusCode::kNotFound, "{}: no such file or folder", path);
  if (path.ends_with(".gguf")) return open_gguf(path);
  return invalid("{}: not a model; expected a folder with config.json, a .gguf file or dummy:NAME", path);
}

}  // namespace

Result<Checkpoint> open_checkpoint(const std::string& path) {
  Result<Checkpoint> result = open_any(path);
  if (result.ok()) return result;
  // Names out of a hostile file stand in messages: they stay one line and send nothing to a terminal.
  std::string message = result.status().message();
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return Status(result.status().code(), std::move(message));
}

}  // namespace moesaic
