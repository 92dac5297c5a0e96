// Chooses the files of a repository that make up the model that was asked for.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_places.h"
#include "hub/listing.h"

namespace moesaic::hub {

struct Choice {
  std::vector<RemoteFile> files;
  std::string opens;  // the file, by its path in the repository, that opens the model; empty: its folder
};

// A repository with .safetensors at its top gives those, with the small files beside them. Its subfolders
// (original, metal) hold the same weights in other formats and are not taken, unless there is nothing but
// `original`. A repository with GGUF files gives the model that name.tag or name.file means, or the only one;
// a draft head beside a model is taken for name.file alone. With `usual` and neither of them, llama.cpp's
// usual quantisations (Q4_K_M, then Q8_0) are preferred. It is an error if several models are left; it lists
// them with their sizes.
Result<Choice> choose_files(const Listing& listing, const RepositoryName& name, bool usual);

}  // namespace moesaic::hub
