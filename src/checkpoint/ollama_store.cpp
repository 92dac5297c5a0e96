#include "checkpoint/ollama_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/nearest.h"
#include "checkpoint/json.h"
#include "checkpoint/model_places.h"

namespace moesaic {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostManifest = size_t{1} << 20;  // bytes
constexpr const char* kManifestFolders[] = {"manifests-v2", "manifests"};
constexpr std::string_view kHost = "registry.ollama.ai", kOwner = "library";
constexpr std::string_view kList = "application/vnd.ollama.manifest.list.v2+json";

bool is_store(const fs::path& path) {
  return is_folder(path / "blobs") &&
         std::ranges::any_of(kManifestFolders, [&](const char* name) { return is_folder(path / name); });
}

std::string shown_name(const std::string& host, const std::string& owner, const std::string& model,
                       const std::string& tag) {
  if (host != kHost) return fmt::format("{}/{}/{}:{}", host, owner, model, tag);
  return owner == kOwner ? fmt::format("{}:{}", model, tag) : fmt::format("{}/{}:{}", owner, model, tag);
}

void add_models(const fs::path& manifests, std::vector<OllamaModel>& models) {
  for (const std::string& host : names_in(manifests)) {
    for (const std::string& owner : names_in(manifests / host)) {
      for (const std::string& model : names_in(manifests / host / owner)) {
        for (const std::string& tag : names_in(manifests / host / owner / model)) {
          const std::string name = shown_name(host, owner, model, tag);
          if (!std::ranges::any_of(models, [&](const OllamaModel& m) { return m.name == name; }))
            models.push_back({name, (manifests / host / owner / model / tag).string()});
        }
      }
    }
  }
}

// The path of a blob in a store; empty where the sum is none.
fs::path blob_path(const fs::path& store, const std::string& digest) {
  constexpr std::string_view kSum = "sha256:";
  const std::string sum = digest.starts_with(kSum) ? digest.substr(kSum.size()) : "";
  const bool hex =
      sum.size() == 64 && std::ranges::all_of(sum, [](unsigned char c) { return std::isxdigit(c) != 0; });
  return hex ? store / "blobs" / ("sha256-" + sum) : fs::path();
}

Result<Json> read_manifest(const fs::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_whole(path.string(), kMostManifest));
  ASSIGN_OR_RETURN(Json manifest, parse_json(text, path.string()));
  if (!manifest.is_object()) return invalid("{}: not a manifest of Ollama", path.string());
  return manifest;
}

// Finds the manifest with a GGUF file in a list that has one manifest for each program that runs the model.
Result<Json> runnable(const Json& list, const fs::path& store, const std::string& name) {
  const Json& entries = member(list, "manifests");
  for (const char* runner : {"ollama", "llamacpp"}) {
    for (const Json& entry : entries.is_array() ? entries : Json::array()) {
      if (lower_case(string_or(entry, "runner", "")) != runner) continue;
      if (entry.contains("layers")) return entry;
      const fs::path blob = blob_path(store, string_or(entry, "digest", ""));
      if (!blob.empty()) return read_manifest(blob);
    }
  }
  return error(StatusCode::kUnsupported, "{}: Ollama has no GGUF file of it", name);
}

Result<std::string> blob_of(const Json& manifest, const fs::path& store, const std::string& name) {
  constexpr std::string_view kModel = "application/vnd.ollama.image.model",
                             kAdapter = "application/vnd.ollama.image.adapter";
  const Json& layers = member(manifest, "layers");
  fs::path model, adapter;
  int models = 0;
  for (const Json& layer : layers.is_array() ? layers : Json::array()) {
    const std::string kind = string_or(layer, "mediaType", "");
    if (kind != kModel && kind != kAdapter) continue;
    const fs::path blob = blob_path(store, string_or(layer, "digest", ""));
    if (blob.empty()) return invalid("{}: its manifest names a blob by something that is no sum", name);
    (kind == kModel ? model : adapter) = blob;
    models += kind == kModel ? 1 : 0;
  }
  if (models != 1)
    return error(StatusCode::kUnsupported, "{}: Ollama has {} of it, not one", name,
                 models == 0 ? "no GGUF file" : "several files");
  if (!adapter.empty())
    return error(StatusCode::kUnsupported,
                 "{}: it is a model with an adapter, which would not be applied; the model alone: -m {}",
                 name, model.string());
  if (!is_there(model))
    return error(StatusCode::kNotFound, "{}: {} is missing; get it again: ollama pull {}", name,
                 model.string(), name);
  return model.string();
}

// HOST/owner/model of a name, in small letters, as Ollama completes it.
std::string full_name(std::string name) {
  constexpr std::string_view kScheme = "https://";
  if (name.starts_with(kScheme)) name.erase(0, kScheme.size());
  const auto slashes = std::ranges::count(name, '/');
  if (slashes == 0) name = fmt::format("{}/{}/{}", kHost, kOwner, name);
  if (slashes == 1) name = fmt::format("{}/{}", kHost, name);
  name = lower_case(std::move(name));
  for (const auto& [other, host] :
       {std::pair("ollama.com/", "registry.ollama.ai/"), std::pair("huggingface.co/", "hf.co/")}) {
    if (name.starts_with(other)) name.replace(0, std::string_view(other).size(), host);
  }
  return name;
}

}  // namespace

std::vector<OllamaModel> ollama_models(const fs::path& store) {
  std::vector<OllamaModel> models;
  for (const char* folder : kManifestFolders) add_models(store / folder, models);
  std::ranges::sort(models, {}, &OllamaModel::name);
  return models;
}

std::optional<fs::path> ollama_store_of(const fs::path& path) {
  std::error_code ignored;
  fs::path at = fs::absolute(path, ignored).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();
  if (is_store(at)) return at;
  if (is_store(at / "models")) return at / "models";
  constexpr int kLevels = 5;  // manifests/HOST/OWNER/MODEL/TAG
  for (int i = 0; i < kLevels && at.has_relative_path(); ++i, at = at.parent_path()) {
    const std::string name = at.filename().string();
    if (std::ranges::any_of(kManifestFolders, [&](const char* folder) { return name == folder; }) &&
        is_store(at.parent_path()))
      return at.parent_path();
  }
  return {};
}

std::vector<OllamaModel> ollama_models_at(const fs::path& path) {
  const std::optional<fs::path> store = ollama_store_of(path);
  if (!store) return {};
  std::vector<OllamaModel> models = ollama_models(*store);
  std::error_code ignored;
  fs::path at = fs::absolute(path, ignored).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();
  if (at == *store || at / "models" == *store) return models;
  std::erase_if(models, [&](const OllamaModel& m) {
    return m.manifest != at.string() && !m.manifest.starts_with(at.string() + "/");
  });
  return models;
}

Result<std::string> ollama_blob(const OllamaModel& model) {
  const std::optional<fs::path> store = ollama_store_of(model.manifest);
  if (!store) return invalid("{}: not in a store of Ollama", model.manifest);
  ASSIGN_OR_RETURN(Json manifest, read_manifest(model.manifest));
  if (string_or(manifest, "mediaType", "") == kList) {
    ASSIGN_OR_RETURN(manifest, runnable(manifest, *store, model.name));
  }
  return blob_of(manifest, *store, model.name);
}

std::vector<OllamaModel> find_ollama(const std::string& name, const std::vector<std::string>& stores) {
  const size_t colon = name.rfind(':');
  const bool tagged = colon != std::string::npos && name.find('/', colon) == std::string::npos;
  const std::string wanted = full_name(name.substr(0, tagged ? colon : name.size())) + ":";
  for (const std::string& store : stores) {
    std::vector<OllamaModel> found;
    for (const OllamaModel& model : ollama_models(store)) {
      const size_t end = model.name.rfind(':');
      const std::string tag = lower_case(model.name.substr(end + 1));
      if (full_name(model.name.substr(0, end)) + ":" != wanted) continue;
      if (tagged ? tag == lower_case(name.substr(colon + 1)) : tag == "latest") return {model};
      if (!tagged) found.push_back(model);
    }
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace moesaic
