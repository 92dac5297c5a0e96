// Ollama's store: manifests/HOST/OWNER/MODEL/TAG names the blobs of a model by their sums, blobs/sha256-...
// are they. Newer versions keep manifests as blobs, to which manifests-v2 links. Nothing here writes to it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

struct OllamaModel {
  std::string name;      // as Ollama shows it: gpt-oss:20b, owner/model:tag, hf.co/owner/model:Q8_0
  std::string manifest;  // path
};

// The models of a store, sorted by name.
std::vector<OllamaModel> ollama_models(const std::filesystem::path& store);

// The store that a path is of: the store itself, ~/.ollama, or a manifest or folder of manifests in it.
std::optional<std::filesystem::path> ollama_store_of(const std::filesystem::path& path);

// The models of a store whose manifest is at a path or below it.
std::vector<OllamaModel> ollama_models_at(const std::filesystem::path& path);

// The GGUF file of a model. Without its blob, with an adapter, or in another form than GGUF it is an error of
// one line.
Result<std::string> ollama_blob(const OllamaModel& model);

// Finds a name in these stores: model[:tag] (without a tag: latest, or the only one there is),
// owner/model[:tag], HOST/owner/model[:tag]; in any case of letters. Gives several if the name has no tag and
// the model has several, none of which is latest.
std::vector<OllamaModel> find_ollama(const std::string& name, const std::vector<std::string>& stores);

}  // namespace moesaic
