// The models on this machine, with the name by which -m opens each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_places.h"

namespace moesaic {

struct FoundModel {
  std::string name;   // find_model() takes it
  std::string kind;   // "safetensors" or "GGUF"
  std::string place;  // "Hugging Face", "Ollama", "LM Studio" or the folder
  std::string path;
  int64_t bytes = 0;
  bool gpt_oss = true;   // by its config or metadata; true where neither can be read
  bool complete = true;  // all parts are there
};

// The models in a folder and, unless it is one itself, in its subfolders to a depth of four: folders with a
// config.json and .safetensors files, and GGUF files, each split one once. Names are paths below it. A folder
// that links lead to more than once is looked at once.
std::vector<FoundModel> models_below(const std::string& folder);

// The models in the caches and stores, and in the folder "models" where the program was started; sorted by
// place and name.
std::vector<FoundModel> models_here(const ModelPlaces& places);

// Removes a model that has been found before at the same file or folder, by another path.
void remove_repeated(std::vector<FoundModel>& models);

// The places that are there and that this user may not look at: a line each, with the reason.
std::vector<std::string> closed_places(const ModelPlaces& places);

// A hint for the error about a name that was not found: the nearest model on this machine, and the command
// that gets the model that was probably meant.
std::string hint_for(const std::string& name, const ModelPlaces& places);

// The repository of Hugging Face that a name means: the name itself if it is a repository's, else the
// published model that it is nearest to. Empty if it is near to none.
std::string published(const std::string& name);

// general.architecture of a GGUF file, model_type of a folder's config.json; empty where there is none.
std::string architecture_of(const std::string& path);
// True if the name is that of gpt-oss's architecture.
bool is_gpt_oss(const std::string& architecture);

}  // namespace moesaic
