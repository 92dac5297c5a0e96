#include "checkpoint/find_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/model_list.h"
#include "checkpoint/ollama_store.h"
#include "checkpoint/weight_files.h"

namespace moesaic {

namespace fs = std::filesystem;

namespace {

Result<std::string> in_folder(const fs::path& folder);

Result<std::string> in_snapshots(const fs::path& folder) {
  ASSIGN_OR_RETURN(const fs::path snapshot, current_snapshot(folder));
  return in_folder(snapshot);
}

bool is_hub(const fs::path& folder) {
  return std::ranges::any_of(names_in(folder),
                             [](const std::string& name) { return name.starts_with(kHubPrefix); });
}

Result<std::string> in_hub(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> models;
  for (const std::string& name : names) {
    if (name.starts_with(kHubPrefix) && name.find("gpt-oss") != std::string::npos) models.push_back(name);
  }
  if (models.size() == 1) return in_snapshots(folder / models.front());
  if (models.empty())
    return error(StatusCode::kNotFound, "{}: no gpt-oss model in this cache; get one: {}", folder.string(),
                 pull_command("openai/gpt-oss-20b"));
  std::ranges::transform(models, models.begin(), repository_of);
  return invalid("{}: several models; name one of them: {}", folder.string(), listed(models));
}

// The error for a folder with nothing but an adapter.
Status only_adapter(const fs::path& folder) {
  const auto config = read_json_file((folder / kAdapterConfig).string());
  const std::string base = config.ok() ? string_or(config.value(), "base_model_name_or_path", "") : "";
  const std::string model = base.empty() ? "BASE-MODEL" : base.substr(0, 120);
  return invalid("{}: a LoRA adapter{}, not a model; run: -m {} --lora {}", folder.string(),
                 base.empty() ? "" : " for " + model, model, folder.string());
}

Result<std::string> one_of(const std::vector<OllamaModel>& models, const std::string& where) {
  if (models.size() == 1) return ollama_blob(models.front());
  std::vector<std::string> names;
  std::ranges::transform(models, std::back_inserter(names), &OllamaModel::name);
  return invalid("{}: several models; name one of them: {}", where, listed(names));
}

// The only gpt-oss model, or the only model there is.
Result<std::string> one_of(std::vector<FoundModel> models, const fs::path& folder) {
  remove_repeated(models);
  if (std::ranges::any_of(models, &FoundModel::gpt_oss))
    std::erase_if(models, [](const FoundModel& m) { return !m.gpt_oss; });
  std::vector<std::string> paths;
  std::ranges::transform(models, std::back_inserter(paths), &FoundModel::path);
  paths = without_heads(std::move(paths));
  std::erase_if(models, [&](const FoundModel& m) { return std::ranges::find(paths, m.path) == paths.end(); });
  if (models.size() == 1) return models.front().path;
  std::vector<std::string> names;
  std::ranges::transform(models, std::back_inserter(names), &FoundModel::name);
  return invalid("{}: several models; name one of them: {}", folder.string(), listed(names));
}

Result<std::string> in_folder(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  const bool gguf_alone =
      !gguf_models(names).empty() &&
      std::ranges::none_of(names, [](const std::string& n) { return n.ends_with(".safetensors"); });
  if (is_there(folder / "config.json") && !gguf_alone) return folder.string();
  if (is_folder(folder / "snapshots")) return in_snapshots(folder);
  if (is_hub(folder)) return in_hub(folder, names);
  if (std::vector<OllamaModel> models = ollama_models_at(folder); !models.empty())
    return one_of(models, folder.string());
  if (is_hub(folder / "hub")) return in_hub(folder / "hub", names_in(folder / "hub"));
  if (std::vector<FoundModel> models = models_below(folder.string()); !models.empty())
    return one_of(std::move(models), folder);
  if (is_there(folder / kAdapterConfig)) return only_adapter(folder);
  RETURN_IF_ERROR(may_look(folder));
  return error(
      StatusCode::kNotFound,
      "{}: no config.json and no .gguf file; a model folder holds config.json and .safetensors files",
      folder.string());
}

// Finds the named model in a repository's folder.
Result<std::string> in_repository(const fs::path& folder, const RepositoryName& name) {
  if (!name.file.empty()) {
    if (is_there(folder / name.file)) return (folder / name.file).string();
    return error(StatusCode::kNotFound, "{}: not among its files here; get it: {}",
                 name.full_name() + "/" + name.file, pull_command(name.full_name() + "/" + name.file));
  }
  std::vector<std::string> ggufs;
  bool whole = false, other = false;
  std::string head;
  for (const FoundModel& model : models_below(folder.string())) {
    whole = whole || model.kind != "GGUF";
    if (is_head(model.name))
      head = model.name;
    else
      other = true;
    if (model.kind == "GGUF" && (model.gpt_oss || !name.tag.empty())) ggufs.push_back(model.name);
  }
  ggufs = without_heads(std::move(ggufs));
  if (!head.empty() && !other) {
    const std::string wanted = name.full_name() + (name.tag.empty() ? "" : ":" + name.tag);
    return error(StatusCode::kNotFound, "{}: only a draft head of it is here ({}); get the model: {}", wanted,
                 head, pull_command(wanted));
  }
  if (name.tag.empty() && (whole || ggufs.empty())) return in_folder(folder);
  const std::vector<std::string> meant = name.tag.empty() ? ggufs : with_gguf_tag(ggufs, name.tag);
  if (meant.size() == 1) return (folder / meant.front()).string();
  if (meant.empty())
    return error(StatusCode::kNotFound, "{}:{}: not here{}; get it: {}", name.full_name(), name.tag,
                 ggufs.empty() ? "" : ", but " + listed(ggufs),
                 pull_command(name.full_name() + ":" + name.tag));
  std::vector<std::string> names;
  for (const std::string& file : meant) names.push_back(name.full_name() + "/" + file);
  return invalid("{}: several models; name one of them: {}", name.full_name(), listed(names));
}

// As in_repository(), of a snapshot that may have a part of the model's files: huggingface_hub names it in
// refs before it fetches them, and files of another quantisation may be whole.
Result<std::string> in_snapshot(const fs::path& folder, const RepositoryName& name) {
  Result<std::string> found = in_repository(folder, name);
  if (!found.ok() || all_weights_there(found.value()).code() != StatusCode::kNotFound) return found;
  const std::string tail =
      (name.tag.empty() ? "" : ":" + name.tag) + (name.file.empty() ? "" : "/" + name.file);
  return error(StatusCode::kNotFound, "{}{}: not all of its files are here; get the rest: {}",
               name.full_name(), tail, pull_command(name.full_name() + tail));
}

// Looks in the revision's snapshot, and of main, for a file or a quantisation, in the others too: it may have
// been got when another one was current.
Result<std::string> in_hub_repository(const fs::path& folder, const RepositoryName& name) {
  const Result<fs::path> current = current_snapshot(folder, name.revision);
  Result<std::string> found = current.ok() ? in_snapshot(current.value(), name) : current.status();
  if (found.ok() || !name.revision.empty() || (name.tag.empty() && name.file.empty())) return found;
  for (const std::string& commit : names_in(folder / "snapshots")) {
    if (auto older = in_snapshot(folder / "snapshots" / commit, name); older.ok()) return older;
  }
  return found;
}

// Finds a repository in LM Studio's folders: by its own name, else by the names that LM Studio knows it by.
std::optional<Result<std::string>> in_lm_studio(const RepositoryName& name,
                                                const std::vector<std::string>& homes) {
  std::vector<std::string> repositories = {name.repository};
  for (const std::string& home : homes)
    std::ranges::copy(lm_studio_sources(home, name.repository), std::back_inserter(repositories));
  const std::vector<std::string> roots = lm_studio_roots(homes);
  for (const std::string& repository : repositories) {
    RepositoryName meant = name;
    meant.repository = repository;
    for (const std::string& root : roots) {
      if (is_folder(fs::path(root) / repository)) return in_repository(fs::path(root) / repository, meant);
    }
  }
  return {};
}

std::optional<Result<std::string>> in_ollama(const std::string& name, const ModelPlaces& places) {
  const auto models = find_ollama(name, places.ollama);
  return models.empty() ? std::nullopt : std::optional(one_of(models, name));
}

// Finds the model that a name means; nothing if no model here has the name.
std::optional<Result<std::string>> by_name(const std::string& name, const ModelPlaces& places) {
  // So Ollama names what it has from Hugging Face.
  if (name.starts_with("hf.co/") || name.starts_with("huggingface.co/")) {
    if (auto found = in_ollama(name, places)) return found;
  }
  if (const auto repository = repository_name(name)) {
    const fs::path folder = fs::path(places.hub) / hub_folder(repository->repository);
    if (!places.hub.empty() && is_folder(folder)) {
      return in_hub_repository(folder, *repository);
    }
    if (auto found = in_lm_studio(*repository, places.lm_studio); found && repository->revision.empty())
      return found;
  }
  return in_ollama(name, places);
}

bool may_be_manifest(const std::string& path) {
  char first = 0;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream(path, std::ios::binary).get(first);
  return first == '{';
}

}  // namespace

Result<std::string> find_model(const std::string& name, const ModelPlaces& places) {
  if (is_folder(name)) return in_folder(name);
  if (is_there(name)) {
    const auto models = may_be_manifest(name) ? ollama_models_at(name) : std::vector<OllamaModel>();
    return models.size() == 1 ? ollama_blob(models.front()) : name;
  }
  if (auto found = by_name(name, places)) return *std::move(found);
  RETURN_IF_ERROR(may_look(name));
  const auto parsed = repository_name(name);
  if (parsed && !places.hub.empty())
    RETURN_IF_ERROR(may_look(fs::path(places.hub) / hub_folder(parsed->repository)));
  const bool repository = parsed && !is_folder(fs::path(name).parent_path());
  return error(StatusCode::kNotFound, "{}: {}{}", name,
               repository && !places.hub.empty()
                   ? "no such folder, and not in the Hugging Face cache (" + places.hub + ")"
                   : "no such file, folder or model",
               hint_for(name, places));
}

Result<std::string> find_adapter(const std::string& name, const ModelPlaces& places) {
  fs::path folder = name;
  const auto repository = repository_name(name);
  if (!is_there(folder) && repository && !places.hub.empty() &&
      is_folder(fs::path(places.hub) / hub_folder(repository->repository))) {
    ASSIGN_OR_RETURN(folder, current_snapshot(fs::path(places.hub) / hub_folder(repository->repository),
                                              repository->revision));
  }
  if (!is_there(folder))
    return error(StatusCode::kNotFound, "{}: no such adapter{}", name,
                 repository ? "; get it: " + pull_command(name) : " folder");
  if (is_there(folder / kAdapterConfig) || !is_folder(folder)) return folder.string();
  std::vector<std::string> ggufs = gguf_models(names_in(folder));
  if (repository && !repository->tag.empty()) ggufs = with_gguf_tag(ggufs, repository->tag);
  if (ggufs.size() == 1) return (folder / ggufs.front()).string();
  if (ggufs.size() > 1)
    return invalid("{}: several GGUF files; name one of them: {}", folder.string(), listed(ggufs));
  return error(StatusCode::kNotFound,
               "{}: no {}; a LoRA adapter is a folder that peft has saved, or a GGUF file", name,
               kAdapterConfig);
}

}  // namespace moesaic
