#include "checkpoint/find_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <span>

#include "base/error.h"
#include "base/file_cache.h"
#include "checkpoint/json.h"

namespace moesaic {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

namespace {

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Names in a folder, sorted.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored))
    names.push_back(at->path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  const auto shown = std::span(names).first(std::min(names.size(), kMost));
  return fmt::format("{}{}", fmt::to_string(fmt::join(shown, ", ")),
                     names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
}

// Whether it is owner/name as Hugging Face has them.
bool is_repository(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == name.size()) return false;
  constexpr std::string_view kOthers = "-_.";
  const auto may_be = [&](char c) {
    return (std::isalnum(static_cast<unsigned char>(c)) != 0) || kOthers.find(c) != std::string_view::npos;
  };
  const std::string_view owner = name.substr(0, slash), model = name.substr(slash + 1);
  return owner[0] != '.' && model[0] != '.' && std::ranges::all_of(owner, may_be) &&
         std::ranges::all_of(model, may_be);
}

// The formats' other subfolders (original, metal) are left out.
std::string download(std::string_view repository) {
  return fmt::format("hf download {} --exclude '*/*'", repository);
}

constexpr std::string_view kHubPrefix = "models--";
// models--owner--name
std::string hub_folder(std::string repository) {
  return std::string(kHubPrefix) + repository.replace(repository.find('/'), 1, "--");
}
std::string repository_of(const std::string& hub_folder) {
  std::string name = hub_folder.substr(kHubPrefix.size());
  const size_t dashes = name.find("--");
  return dashes == std::string::npos ? name : name.replace(dashes, 2, "/");
}

// A folder's GGUF models, each by its first part.
std::vector<std::string> gguf_models(const fs::path& folder) {
  std::set<std::string> models;
  for (const std::string& name : names_in(folder)) {
    if (name.ends_with(".gguf")) models.insert(gguf_parts(name).front());
  }
  return {models.begin(), models.end()};
}

Result<std::string> in_folder(const fs::path& folder);

// refs/main holds the name of the current snapshot. Without it the only one there is.
Result<fs::path> current_snapshot(const fs::path& folder) {
  constexpr size_t kMostName = 256;
  std::string current;
  if (auto ref = read_whole((folder / "refs" / "main").string(), kMostName); ref.ok())
    current = std::move(ref).value();
  current.erase(std::ranges::find_if(current, [](unsigned char c) { return std::isspace(c) != 0; }),
                current.end());
  const std::vector<std::string> all = names_in(folder / "snapshots");
  if (current.empty() && all.size() == 1) current = all.front();
  const std::string repository = folder.filename().string().starts_with(kHubPrefix)
                                     ? repository_of(folder.filename().string())
                                     : "MODEL";
  if (std::ranges::find(all, current) == all.end())
    return error(StatusCode::kNotFound, "{}: no complete snapshot; download it again: {}", folder.string(),
                 download(repository));
  return folder / "snapshots" / current;
}
Result<std::string> in_snapshots(const fs::path& folder) {
  ASSIGN_OR_RETURN(const fs::path snapshot, current_snapshot(folder));
  return in_folder(snapshot);
}

Result<std::string> in_hub(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> models;
  for (const std::string& name : names) {
    if (name.starts_with(kHubPrefix) && name.find("gpt-oss") != std::string::npos) models.push_back(name);
  }
  if (models.size() == 1) return in_snapshots(folder / models.front());
  if (models.empty())
    return error(StatusCode::kNotFound, "{}: no gpt-oss model in this cache; get one: {}", folder.string(),
                 download("openai/gpt-oss-20b"));
  std::ranges::transform(models, models.begin(), repository_of);
  return invalid("{}: several models; name one of them: {}", folder.string(), listed(models));
}

// What to say of a folder with nothing but an adapter.
Status only_adapter(const fs::path& folder) {
  const auto config = read_json_file((folder / kAdapterConfig).string());
  const auto base =
      config.ok() && config->is_object() ? config->find("base_model_name_or_path") : Json::const_iterator();
  const bool named = config.ok() && config->is_object() && base != config->end() && base->is_string() &&
                     !base->get<std::string>().empty();
  const std::string model = named ? base->get<std::string>().substr(0, 120) : "BASE-MODEL";
  return invalid("{}: a LoRA adapter{}, not a model; run: -m {} --lora {}", folder.string(),
                 named ? " for " + model : "", model, folder.string());
}

Result<std::string> in_folder(const fs::path& folder) {
  if (is_there(folder / "config.json")) return folder.string();
  const std::vector<std::string> models = gguf_models(folder);
  if (models.size() == 1) return (folder / models.front()).string();
  if (models.size() > 1)
    return invalid("{}: several models; name one of them: {}", folder.string(), listed(models));
  if (is_folder(folder / "snapshots")) return in_snapshots(folder);
  const std::vector<std::string> names = names_in(folder);
  if (std::ranges::any_of(names, [](const std::string& n) { return n.starts_with(kHubPrefix); }))
    return in_hub(folder, names);
  if (is_folder(folder / "hub")) return in_folder(folder / "hub");
  if (is_there(folder / kAdapterConfig)) return only_adapter(folder);
  return error(
      StatusCode::kNotFound,
      "{}: no config.json and no .gguf file; a model folder holds config.json and .safetensors files",
      folder.string());
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::string hub_cache() {
  if (std::string hub = variable("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/huggingface/hub";
  return {};
}

Result<std::string> find_model(const std::string& name, const std::string& hub) {
  if (is_folder(name)) return in_folder(name);
  if (is_there(name)) return name;
  if (!is_repository(name)) return error(StatusCode::kNotFound, "{}: no such file or folder", name);
  const fs::path folder = fs::path(hub) / hub_folder(name);
  if (!hub.empty() && is_folder(folder)) return in_snapshots(folder);
  return error(StatusCode::kNotFound, "{}: no such folder, and not in the Hugging Face cache{}; get it: {}",
               name, hub.empty() ? "" : " (" + hub + ")", download(name));
}

Result<std::string> find_adapter(const std::string& name, const std::string& hub) {
  fs::path folder = name;
  if (!is_there(folder) && is_repository(name) && !hub.empty() &&
      is_folder(fs::path(hub) / hub_folder(name))) {
    ASSIGN_OR_RETURN(folder, current_snapshot(fs::path(hub) / hub_folder(name)));
  }
  if (!is_there(folder))
    return error(StatusCode::kNotFound, "{}: no such adapter{}", name,
                 is_repository(name) ? "; get it: " + download(name) : " folder");
  if (is_there(folder / kAdapterConfig)) return folder.string();
  return error(StatusCode::kNotFound, "{}: no {}; a LoRA adapter is a folder that peft has saved", name,
               kAdapterConfig);
}

std::vector<std::string> gguf_parts(const std::string& path) {
  // -00001-of-00003.gguf
  constexpr size_t kTail = 20, kDigits = 5;
  const auto digits = [](std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (path.size() < kTail) return {path};
  const std::string stem = path.substr(0, path.size() - kTail), tail = path.substr(stem.size());
  const std::string number = tail.substr(1, kDigits), count = tail.substr(10, kDigits);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !tail.ends_with(".gguf") || !digits(number) ||
      !digits(count))
    return {path};
  const int parts = std::stoi(count);
  if (parts < 1 || std::stoi(number) < 1 || std::stoi(number) > parts) return {path};
  std::vector<std::string> names;
  for (int i = 1; i <= parts; ++i) names.push_back(fmt::format("{}-{:05}-of-{}.gguf", stem, i, count));
  return names;
}

}  // namespace moesaic
