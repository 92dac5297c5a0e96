#include "checkpoint/weight_files.h"

#include <vector>

#include "base/error.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/json.h"
#include "checkpoint/model_places.h"

namespace moesaic {

namespace fs = std::filesystem;

namespace {

// The files named by an index, each of which must be a plain name in the same folder.
Result<std::set<std::string>> indexed_files(const fs::path& index) {
  ASSIGN_OR_RETURN(const Json json, read_json_file(index.string()));
  const Json& files = member(json, "weight_map");
  if (!files.is_object()) return invalid("{}: it has no weight_map", index.string());
  if (files.empty()) return invalid("{}: its weight_map is empty; download it again", index.string());
  std::set<std::string> names;
  for (const Json& name : files) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.empty() || text.find('/') != std::string::npos)
      return invalid("{}: '{}' is not a file name", index.string(), text.substr(0, 80));
    names.insert(text);
  }
  size_t there = 0;
  std::string missing;
  for (const std::string& name : names) {
    if (is_there(index.parent_path() / name))
      ++there;
    else if (missing.empty())
      missing = name;
  }
  if (!missing.empty())
    return error(StatusCode::kNotFound, "{}: '{}' is missing, {} of {} files are there; download the rest",
                 index.string(), missing, there, names.size());
  return names;
}

}  // namespace

Result<std::set<std::string>> safetensors_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") names.insert(entry.path().filename().string());
  }
  if (!names.empty()) return names;
  return error(StatusCode::kNotFound, "{}: no .safetensors file in this folder", folder.string());
}

Result<std::set<std::string>> weight_files(const fs::path& folder) {
  const bool single = is_there(folder / "model.safetensors");
  if (is_there(folder / "model.safetensors.index.json")) {
    auto indexed = indexed_files(folder / "model.safetensors.index.json");
    // Files that are gone, beside one with all tensors: the index is left from another form of the model.
    if (indexed.status().code() != StatusCode::kNotFound || !single) return indexed;
  }
  if (single) return std::set<std::string>{"model.safetensors"};
  ASSIGN_OR_RETURN(std::set<std::string> names, safetensors_in(folder));
  const fs::path stem = fs::path(*names.begin()).stem();
  if (const size_t parts = gguf_parts(stem.string() + ".gguf").size(); parts > names.size())
    return error(StatusCode::kNotFound, "{}: {} of {} .safetensors files are there; download the rest",
                 folder.string(), names.size(), parts);
  return names;
}

Status all_weights_there(const std::string& path) {
  if (is_folder(path)) return weight_files(path).status();
  const std::vector<std::string> parts = gguf_parts(path);
  for (const std::string& part : parts) {
    if (!is_there(part))
      return error(StatusCode::kNotFound, "{}: missing; the {} parts of a split model must lie in one folder",
                   part, parts.size());
  }
  return {};
}

}  // namespace moesaic
