// From what a user names to what is opened: a folder with config.json, or a GGUF file.
#pragma once

#include <string>

#include "checkpoint/gguf_names.h"
#include "checkpoint/model_places.h"
#include "moesaic/status.h"

namespace moesaic {

// name: a path, or a name that the model has in one of the places. A path may lead to
//   a file, or a folder with config.json and .safetensors: as it is
//   a folder with one GGUF model in it or in its subfolders, of one part or several: its first part
//   a model's folder of the Hugging Face cache (refs, snapshots): its current snapshot
//   the cache itself, with one gpt-oss model: that one
//   a store of Ollama, a manifest in it or a folder of manifests, with one model: its blob
// A name that is not a path is looked for, in this order, as
//   owner/name[:QUANTISATION] and owner/name/file.gguf in the Hugging Face cache and in LM Studio's folders
//   model:tag, owner/model:tag and HOST/owner/model:tag in Ollama's stores, or its page on ollama.com
// hf.co/owner/name is first looked for in Ollama's stores, which know what they have from there by that name.
// GGUF models of another architecture do not count where there are several. Anything else is an error of one
// line that says what is there, the nearest name, and the command that gets the model. For a folder with
// nothing but a LoRA adapter, it says which model the adapter is for.
Result<std::string> find_model(const std::string& name, const ModelPlaces& places);

// peft's name of an adapter's config, which marks the folder of one.
inline constexpr const char* kAdapterConfig = "adapter_config.json";
// The folder of a LoRA adapter, or its GGUF file: name is that, a folder with one such file, or owner/name of
// one that is in the Hugging Face cache.
Result<std::string> find_adapter(const std::string& name, const ModelPlaces& places);

}  // namespace moesaic
