// Which of a repository's files make the model that was asked for.
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

// Of a repository with .safetensors at its top: those, with the small files beside them. Subfolders hold the
// same weights in other formats (original, metal), unless there is nothing but `original`. Of one with GGUF
// files: the model that name.tag or name.file means, or the only one; with `usual` and neither, llama.cpp's
// usual quantisations (Q4_K_M, then Q8_0) count before the question. Several: an error that lists them with
// their sizes.
Result<Choice> choose_files(const Listing& listing, const RepositoryName& name, bool usual);

}  // namespace moesaic::hub
