// The files with the weights of a model.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

struct WeightFiles {
  std::set<std::string> names;
  std::map<std::string, std::string>
      file_of;  // by tensor, where an index says it; a copy in another file is stale
};

// The .safetensors files in a folder that make up its model. StatusCode::kNotFound if there is none, or if
// one that the index or the names of the others tell of is missing.
Result<WeightFiles> weight_files(const std::filesystem::path& folder);

// Ok, or kNotFound if files of what find_model() gives are missing: of such a folder, or parts of a GGUF
// model.
Status all_weights_there(const std::string& path);

}  // namespace moesaic
