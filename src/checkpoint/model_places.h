// The folders in which the programs of this user keep models, and the names that these programs give them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

struct ModelPlaces {
  std::string hub;                     // Hugging Face's cache; empty: none
  std::vector<std::string> ollama;     // Ollama's stores: folders with blobs and manifests
  std::vector<std::string> lm_studio;  // LM Studio's homes: the folders with its settings
};

// The places of this user, by the variables of these programs: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME,
// XDG_CACHE_HOME; OLLAMA_MODELS; LM Studio's home pointer. Only the stores of the last two are looked at.
ModelPlaces model_places();

// An environment variable, or nothing where it is unset; a "~" that begins it is the home folder.
std::string environment(const char* name);

// Such a path, with the variables $NAME and ${NAME} in it, as huggingface_hub has it: what is not set stays
// as it is.
std::string environment_path(const char* name);

// Ok, or why this user may not look at a path or, of a folder, at what is in it; so is a link that leads
// nowhere. Ok also where nothing has the path.
Status may_look(const std::filesystem::path& path);
// True if anything is at the path. False if this user may not look at it.
bool is_there(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
// Names in a folder, sorted; of very large folders the first ten thousand that the system gives.
std::vector<std::string> names_in(const std::filesystem::path& folder);
// At most eight names of them in a line.
std::string listed(const std::vector<std::string>& names);

// owner/name of a repository, and what of it: "owner/name", "owner/name:Q8_0", "owner/name/sub/file.gguf",
// each with "@revision" behind owner/name or without; or such a name behind the hub's address
// (https://huggingface.co/, hf.co/, that of HF_ENDPOINT), and the addresses of its pages:
// owner/name/tree/main, tree/main/Q8_0, blob/main/file.gguf and resolve/main/file.gguf.
struct RepositoryName {
  std::string repository;     // owner/name, as Hugging Face has them
  std::string tag = {};       // a quantisation, or empty
  std::string file = {};      // a path in the repository, or empty
  std::string revision = {};  // a branch, tag or commit; empty: the branch main

  // owner/name, or owner/name@revision.
  std::string full_name() const { return revision.empty() ? repository : repository + "@" + revision; }
};
std::optional<RepositoryName> repository_name(std::string_view name);

// True if no part of a relative path is empty, "." or "..", or longer than most_name: it leads to no place
// outside the folder that it starts from.
bool stays_inside(std::string_view path, size_t most_name = std::string_view::npos);

// models--owner--name, the folder of a repository in the cache, and back.
inline constexpr std::string_view kHubPrefix = "models--";
std::string hub_folder(std::string repository);
std::string repository_of(const std::string& hub_folder);
inline constexpr std::string_view kMainRevision = "main";
// The folder with a revision's snapshot in such a folder: refs/REVISION names it; without that, the one of
// this commit, or for main the only one. revision: as RepositoryName has it.
Result<std::filesystem::path> current_snapshot(const std::filesystem::path& folder,
                                               const std::string& revision = {});

// The command that gets a repository.
std::string pull_command(std::string_view name);

// LM Studio's models folders of a home: the one that its settings name, and its own.
std::vector<std::string> lm_studio_roots(const std::vector<std::string>& homes);
// The names publisher/name that LM Studio's own name of a model stands for ("openai/gpt-oss-20b" is
// lmstudio-community/gpt-oss-20b-GGUF), besides the name itself.
std::vector<std::string> lm_studio_sources(const std::string& home, const std::string& name);

}  // namespace moesaic
