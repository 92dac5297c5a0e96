#include "checkpoint/model_list.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/nearest.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/json.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/ollama_store.h"
#include "checkpoint/weight_files.h"

namespace moesaic {

namespace fs = std::filesystem;

namespace {

constexpr int kDepth = 4;                  // subfolders: HOME/models/publisher/name/subfolder
constexpr size_t kMostSeen = 50000;        // looked at in a folder and below it
constexpr const char* kFolder = "models";  // where the program was started

int64_t bytes_of(const fs::path& path) {
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  return failed ? 0 : static_cast<int64_t>(size);
}

bool has_safetensors(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& n) { return n.ends_with(".safetensors"); });
}

void add_folder(const fs::path& folder, const std::vector<std::string>& names, const std::string& name,
                std::vector<FoundModel>& found) {
  FoundModel model{.name = name, .kind = "safetensors", .path = folder.string()};
  for (const std::string& file : names) {
    if (file.ends_with(".safetensors")) model.bytes += bytes_of(folder / file);
  }
  model.gpt_oss = is_gpt_oss(architecture_of(model.path));
  model.complete = all_weights_there(model.path).code() != StatusCode::kNotFound;
  found.push_back(std::move(model));
}

// A pipe or a device with such a name is no model.
void add_gguf(const fs::path& file, const std::string& name, std::vector<FoundModel>& found) {
  std::error_code ignored;
  if (is_there(file) && !fs::is_regular_file(file, ignored)) return;
  FoundModel model{.name = name, .kind = "GGUF", .path = file.string()};
  for (const std::string& part : gguf_parts(model.path)) model.bytes += bytes_of(part);
  model.complete = all_weights_there(model.path).ok();
  const std::string architecture = architecture_of(model.path);
  model.gpt_oss = architecture.empty() || is_gpt_oss(architecture);
  found.push_back(std::move(model));
}

// The names that were looked at so far.
struct Seen {
  size_t names = 0;
  std::set<std::pair<dev_t, ino_t>> folders;

  // False if it was looked at before, by another path.
  bool add(const fs::path& folder) {
    struct stat info {};
    return stat(folder.c_str(), &info) == 0 && folders.emplace(info.st_dev, info.st_ino).second;
  }
};

void add_below(const fs::path& folder, const std::string& name, int depth, Seen& seen,
               std::vector<FoundModel>& found) {
  if (!seen.add(folder)) return;
  std::vector<std::string> names = names_in(folder);
  seen.names += names.size();
  const auto joined = [&](const std::string& file) { return name.empty() ? file : name + "/" + file; };
  const std::vector<std::string> ggufs = gguf_models(names);
  const bool whole = has_safetensors(names) && std::ranges::find(names, "config.json") != names.end();
  if (whole) add_folder(folder, names, name, found);
  for (const std::string& file : ggufs) add_gguf(folder / file, joined(file), found);
  if (whole || depth == 0) return;
  // A folder has its own name rather than that of a link to it.
  std::error_code ignored;
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& file) { return !fs::is_symlink(folder / file, ignored); });
  for (const std::string& file : names) {
    if (seen.names < kMostSeen && !file.starts_with('.') && is_folder(folder / file))
      add_below(folder / file, joined(file), depth - 1, seen, found);
  }
}

// Gives each model the shortest name that means it alone: the repository, with its tag or with its file; for
// a draft head always with its file; for a folder among other models its path. named: the repository means
// one of them, if there is only one.
void name_in_repository(const std::string& repository, std::vector<FoundModel>& found, bool named = true) {
  std::vector<std::string> ggufs;
  for (const FoundModel& model : found) {
    if (model.kind == "GGUF") ggufs.push_back(model.name);
  }
  std::erase_if(ggufs, is_head);
  for (FoundModel& model : found) {
    const std::string tag = gguf_tag(model.name);
    if ((named && found.size() == 1 && !is_head(model.name)) || (model.kind != "GGUF" && model.name.empty()))
      model.name = repository;
    else if (model.kind != "GGUF")
      model.name = model.path;
    else if (const auto same = with_gguf_tag(ggufs, tag); same.size() == 1 && same.front() == model.name)
      model.name = fmt::format("{}:{}", repository, tag);
    else
      model.name = fmt::format("{}/{}", repository, model.name);
  }
}

void add_all(std::vector<FoundModel> from, const std::string& place, std::vector<FoundModel>& to) {
  for (FoundModel& model : from) {
    model.place = place;
    to.push_back(std::move(model));
  }
}

// GGUF files that are whole in other snapshots than the current one alone: find_model() opens them, too, but
// not by the repository's name. True if there are any.
bool add_earlier(const fs::path& snapshots, std::vector<FoundModel>& found) {
  bool added = false;
  for (const std::string& commit : names_in(snapshots)) {
    for (FoundModel& model : models_below((snapshots / commit).string())) {
      const auto known = std::ranges::find(found, model.name, &FoundModel::name);
      const bool here = known != found.end();
      if (model.kind != "GGUF" || !model.complete || (here && known->complete)) continue;
      if (here)
        *known = std::move(model);
      else
        found.push_back(std::move(model));
      added = true;
    }
  }
  return added;
}

// The models of a repository's folder in the cache: what its name means, then what the names of other
// revisions mean.
std::vector<FoundModel> models_in_hub(const fs::path& folder, const std::string& repository) {
  std::vector<FoundModel> all;
  const auto current = current_snapshot(folder);
  if (current.ok()) all = models_below(current.value().string());
  const bool earlier = add_earlier(folder / "snapshots", all);
  name_in_repository(repository, all, !earlier);
  for (const std::string& revision : names_in(folder / "refs")) {
    const std::string name = fmt::format("{}@{}", repository, revision);
    const auto snapshot = current_snapshot(folder, revision);
    if (!snapshot.ok() || !repository_name(name)) continue;
    std::vector<FoundModel> found = models_below(snapshot.value().string());
    name_in_repository(name, found);
    std::ranges::move(found, std::back_inserter(all));
  }
  remove_repeated(all);
  return all;
}

void add_hub(const std::string& hub, std::vector<FoundModel>& out) {
  if (hub.empty()) return;
  for (const std::string& name : names_in(hub)) {
    if (name.starts_with(kHubPrefix))
      add_all(models_in_hub(fs::path(hub) / name, repository_of(name)), "Hugging Face", out);
  }
}

void add_lm_studio(const std::vector<std::string>& homes, std::vector<FoundModel>& out) {
  for (const std::string& root : lm_studio_roots(homes)) {
    for (const std::string& publisher : names_in(root)) {
      for (const std::string& name : names_in(fs::path(root) / publisher)) {
        std::vector<FoundModel> found = models_below((fs::path(root) / publisher / name).string());
        remove_repeated(found);
        name_in_repository(fmt::format("{}/{}", publisher, name), found);
        add_all(std::move(found), "LM Studio", out);
      }
    }
  }
}

void add_ollama(const std::vector<std::string>& stores, std::vector<FoundModel>& out) {
  std::set<std::string> seen;
  for (const std::string& store : stores) {
    for (const OllamaModel& model : ollama_models(store)) {
      const Result<std::string> blob = ollama_blob(model);
      if (!blob.ok() || !seen.insert(model.name).second) continue;
      std::vector<FoundModel> found;
      add_gguf(blob.value(), model.name, found);
      add_all(std::move(found), "Ollama", out);
    }
  }
}

void add_closed(const std::vector<std::string>& places, std::vector<std::string>& lines) {
  for (const std::string& place : places) {
    if (const Status status = may_look(place); !status.ok()) lines.push_back(status.message());
  }
}

// owner/model:tag in small letters, and model:tag and model alone: what people remember of a name.
std::vector<std::string> short_names(const std::string& as_typed) {
  const std::string name = lower_case(as_typed);
  std::vector<std::string> names = {name};
  if (const size_t slash = name.find('/'); slash != std::string::npos)
    names.push_back(name.substr(slash + 1));
  if (const size_t colon = name.rfind(':'); colon != std::string::npos) {
    names.push_back(name.substr(0, colon));
    if (const size_t slash = name.find('/'); slash < colon)
      names.push_back(name.substr(slash + 1, colon - slash - 1));
  }
  return names;
}

// The candidate with the nearest of all its short names; empty where none is near.
std::string nearest_of(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  int least = 1 << 20;
  for (const std::string& candidate : candidates) {
    for (const std::string& is : short_names(candidate)) {
      for (const std::string& wanted : short_names(name)) {
        if (nearest(wanted, {is}).empty()) continue;
        if (const int distance = edit_distance(wanted, is); distance < least) {
          least = distance;
          best = candidate;
        }
      }
    }
  }
  return best;
}

// The path with the nearest name in the same folder as a path that does not exist; empty if there is none.
std::string beside_it(const fs::path& path) {
  std::vector<std::string> names = names_in(path.parent_path());
  std::erase(names, path.filename().string());  // a link that leads nowhere
  const std::string found = nearest(path.filename().string(), names);
  return found.empty() || path.parent_path().empty() ? "" : (path.parent_path() / found).string();
}

}  // namespace

std::string architecture_of(const std::string& path) {
  if (!is_folder(path)) {
    const auto file = MappedFile::open(path);
    return file.ok() ? gguf_architecture(*file.value()) : "";
  }
  const Json json = small_json(path + "/config.json");
  if (const Json& type = member(json, "model_type"); type.is_string()) return type.get<std::string>();
  // OpenAI's own config has no type.
  return json.contains("swiglu_limit") && json.contains("experts_per_token") ? "gpt_oss" : "";
}

bool is_gpt_oss(const std::string& architecture) {
  return architecture == "gpt-oss" || architecture == "gpt_oss" || architecture == "gptoss";
}

std::vector<FoundModel> models_below(const std::string& folder) {
  std::vector<FoundModel> found;
  Seen seen;
  add_below(folder, "", kDepth, seen, found);
  return found;
}

void remove_repeated(std::vector<FoundModel>& models) {
  std::set<fs::path> seen;
  std::erase_if(models, [&](const FoundModel& m) {
    std::error_code ignored;
    const fs::path real = fs::canonical(m.path, ignored);
    return !real.empty() && !seen.insert(real).second;
  });
}

std::vector<std::string> closed_places(const ModelPlaces& places) {
  std::vector<std::string> lines;
  add_closed({places.hub, kFolder}, lines);
  add_closed(places.ollama, lines);
  add_closed(places.lm_studio, lines);
  return lines;
}

std::vector<FoundModel> models_here(const ModelPlaces& places) {
  std::vector<FoundModel> all;
  add_hub(places.hub, all);
  add_lm_studio(places.lm_studio, all);
  add_ollama(places.ollama, all);
  std::vector<FoundModel> found = models_below(kFolder);
  remove_repeated(found);
  for (FoundModel& model : found) model.name = model.path;
  add_all(std::move(found), kFolder, all);
  std::ranges::sort(all, {}, [](const FoundModel& m) { return std::tie(m.place, m.name); });
  return all;
}

std::string published(const std::string& name) {
  if (repository_name(name)) return name;
  std::string plain = name;
  std::ranges::replace(plain, ':', '-');  // as Ollama has it
  return nearest_of(plain, {"openai/gpt-oss-20b", "openai/gpt-oss-120b"});
}

std::string hint_for(const std::string& name, const ModelPlaces& places) {
  std::vector<std::string> names = {"tiny"};
  for (const FoundModel& model : models_here(places)) {
    if (model.gpt_oss) names.push_back(model.name);
  }
  std::string here = beside_it(name);
  if (here.empty()) here = nearest_of(name, names);
  const bool path = is_folder(fs::path(name).parent_path());
  const std::string there = path ? "" : published(name);
  std::string hint;
  if (!here.empty()) hint += fmt::format("; nearest here: -m {}", here);
  if (!there.empty() && there != here) hint += fmt::format("; get it: {}", pull_command(there));
  if (hint.empty()) hint = "; moesaic list shows the models that are here";
  // A store of Ollama's service, whose folder may be its user's alone.
  std::vector<std::string> closed;
  add_closed(places.ollama, closed);
  for (const std::string& line : closed) hint += "; not looked at: " + line;
  return hint;
}

}  // namespace moesaic
