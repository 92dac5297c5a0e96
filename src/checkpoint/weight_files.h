// The files with the weights of a model.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

// Names of all .safetensors files in a folder; StatusCode::kNotFound if there is none.
Result<std::set<std::string>> safetensors_in(const std::filesystem::path& folder);

// Names of the .safetensors files in a folder that make up its model. StatusCode::kNotFound if there is none,
// or if one that the index or the names of the others tell of is missing.
Result<std::set<std::string>> weight_files(const std::filesystem::path& folder);

// Ok, or kNotFound if files of what find_model() gives are missing: of such a folder, or parts of a GGUF
// model.
Status all_weights_there(const std::string& path);

}  // namespace moesaic
