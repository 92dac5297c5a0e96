// From what a user names to what is opened: a folder with config.json, or a GGUF file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

// Whether anything is at a path; what may not be looked at is not.
bool is_there(const std::filesystem::path& path);

// The folder in which Hugging Face's programs keep what they download: HF_HUB_CACHE, else HF_HOME/hub, else
// huggingface/hub in XDG_CACHE_HOME or ~/.cache. Empty where none of them is set.
std::string hub_cache();

// name: a path, or owner/name of a model that was downloaded into `hub`. A path may lead to
//   a file, or a folder with config.json: as it is
//   a folder with one GGUF model, of one part or several: its first part
//   a model's folder of the Hugging Face cache (refs, snapshots): its current snapshot
//   the cache itself, with one gpt-oss model: that one
// Anything else is an error of one line that says what is there, or the command that gets the model; of a
// folder with nothing but a LoRA adapter, which model that is for.
Result<std::string> find_model(const std::string& name, const std::string& hub);

// peft's name of an adapter's config, which marks the folder of one.
inline constexpr const char* kAdapterConfig = "adapter_config.json";
// The folder of a LoRA adapter: name is that folder, or owner/name of one that was downloaded into `hub`.
Result<std::string> find_adapter(const std::string& name, const std::string& hub);

// The parts of a split GGUF model, by the name of any of them: "a-00002-of-00003.gguf" gives three names.
// Another name: itself.
std::vector<std::string> gguf_parts(const std::string& path);

}  // namespace moesaic
