#include "checkpoint/model_places.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "checkpoint/json.h"

namespace moesaic {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostNames = 10000;           // names in a folder
constexpr size_t kMostFile = size_t{1} << 20;  // bytes of a store's small files

// A small file's text without the space at its end; empty where it cannot be read.
std::string line_of(const fs::path& path) {
  Result<std::string> text = read_whole(path.string(), kMostFile);
  if (!text.ok()) return {};
  std::string line = std::move(text).value();
  line.erase(std::ranges::find_if(line, [](unsigned char c) { return c == '\n' || c == '\r'; }), line.end());
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
  return line;
}

std::string hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string hub = environment_path(name); !hub.empty()) return hub;
  }
  if (const std::string home = environment_path("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = environment_path("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/huggingface/hub";
  if (const std::string home = environment("HOME"); !home.empty()) return home + "/.cache/huggingface/hub";
  return {};
}

std::vector<std::string> ollama_stores(const std::string& home) {
  std::vector<std::string> stores;
  if (const std::string store = environment("OLLAMA_MODELS"); !store.empty()) stores.push_back(store);
  if (!home.empty()) stores.push_back(home + "/.ollama/models");
  // The service that Ollama's installer or a distribution sets up has its store in one of these.
  for (const char* service :
       {"/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models", "/var/lib/ollama"})
    stores.emplace_back(service);
  return stores;
}

std::vector<std::string> lm_studio_homes(const std::string& home) {
  if (home.empty()) return {};
  std::vector<std::string> homes;
  if (const std::string named = line_of(home + "/.lmstudio-home-pointer"); !named.empty())
    homes.push_back(named);
  for (const char* place : {"/.lmstudio", "/.cache/lm-studio"}) {
    if (std::ranges::find(homes, home + place) == homes.end()) homes.push_back(home + place);
  }
  return homes;
}

// A part of owner/name, by Hugging Face's rule.
bool is_name(std::string_view name) {
  constexpr std::string_view kOthers = "-_.";
  const auto may_be = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kOthers.find(c) != std::string_view::npos;
  };
  return !name.empty() && name.front() != '.' && name.back() != '.' && std::ranges::all_of(name, may_be) &&
         name.find("..") == std::string_view::npos;
}

// owner/name and what of it, in the hub's own addresses or not.
std::optional<RepositoryName> plain_repository_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return {};
  const size_t end = std::min(name.size(), name.find_first_of("/:", slash + 1));
  const size_t at = std::min(end, name.find('@', slash + 1));
  RepositoryName out{.repository = std::string(name.substr(0, at))};
  if (!is_name(name.substr(0, slash)) || !is_name(name.substr(slash + 1, at - slash - 1)) ||
      out.repository.ends_with(".gguf"))
    return {};
  if (at < end) {
    out.revision = name.substr(at + 1, end - at - 1);
    if (!is_name(out.revision)) return {};
    if (out.revision == kMainRevision) out.revision.clear();
  }
  if (end == name.size()) return out;
  const std::string_view rest = name.substr(end + 1);
  if (name[end] == ':') {
    out.tag = rest;
    return is_name(rest) ? std::optional(out) : std::nullopt;
  }
  out.file = rest;
  return stays_inside(rest) && rest.ends_with(".gguf") ? std::optional(out) : std::nullopt;
}

// The part behind the hub's address; nothing if the name does not begin with it.
std::optional<std::string_view> behind_address(std::string_view name) {
  const std::string small = lower_case(name);
  std::string endpoint = lower_case(environment("HF_ENDPOINT"));
  while (endpoint.ends_with('/')) endpoint.pop_back();
  endpoint += '/';
  if (endpoint.size() > 1 && small.starts_with(endpoint)) return name.substr(endpoint.size());
  constexpr std::string_view kHubScheme = "hf://";
  if (small.starts_with(kHubScheme)) return name.substr(kHubScheme.size());
  size_t start = 0;
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (small.starts_with(scheme)) start = scheme.size();
  }
  for (const std::string_view host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"}) {
    if (std::string_view(small).substr(start).starts_with(host)) return name.substr(start + host.size());
  }
  return {};
}

// A page of the hub about a repository, by what stands behind the hub's address.
std::optional<RepositoryName> repository_of_page(std::string_view page) {
  page = page.substr(0, page.find_first_of("?#"));
  while (page.ends_with('/')) page.remove_suffix(1);
  for (const std::string_view kind : {"/tree/", "/blob/", "/resolve/"}) {
    const size_t at = page.find(kind);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = page.substr(at + kind.size());
    const size_t end = std::min(rest.size(), rest.find('/'));
    const std::string name = fmt::format("{}@{}", page.substr(0, at), rest.substr(0, end));
    if (end == rest.size()) return plain_repository_name(name);
    return plain_repository_name(
        fmt::format("{}{}{}", name, kind == "/tree/" ? ':' : '/', rest.substr(end + 1)));
  }
  return plain_repository_name(page);
}

}  // namespace

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return {};
  const std::string text = value;
  const char* home = std::getenv("HOME");
  const bool at_home = text == "~" || text.starts_with("~/");
  return at_home && home != nullptr ? home + text.substr(1) : text;
}

std::string environment_path(const char* name) {
  const std::string text = environment(name);
  const auto is_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool braces = text.compare(at, 2, "${") == 0;
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && (braces ? text[end] != '}' : is_word(text[end]))) ++end;
    const bool closed = text[at] == '$' && end > begin && (!braces || end < text.size());
    const char* value = closed ? std::getenv(text.substr(begin, end - begin).c_str()) : nullptr;
    if (value != nullptr) {
      out += value;
      at = end + (braces ? 1 : 0);
    } else {
      out += text[at++];
    }
  }
  return out;
}

ModelPlaces model_places() {
  const std::string home = environment("HOME");
  return {.hub = hub_cache(), .ollama = ollama_stores(home), .lm_studio = lm_studio_homes(home)};
}

Status may_look(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found) {
    std::error_code ignored;
    const fs::path target = fs::read_symlink(path, ignored);
    return target.empty() ? Status()
                          : error(StatusCode::kNotFound, "{}: a link to {}, which is not there",
                                  path.string(), target.string());
  }
  if (fs::is_directory(status)) fs::directory_iterator(path, code);
  if (!code || code == std::errc::filename_too_long) return {};
  return error(StatusCode::kIo, "{}: {}", path.string(), code.message());
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end && names.size() < kMostNames;
       at.increment(ignored))
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

bool stays_inside(std::string_view path, size_t most_name) {
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.size(), path.find('/', at));
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > most_name) return false;
    at = end + 1;
  }
  return true;
}

std::optional<RepositoryName> repository_name(std::string_view name) {
  name = trimmed(name, " \t\r\n");  // about a name that was pasted
  if (const auto page = behind_address(name)) return repository_of_page(*page);
  return plain_repository_name(name);
}

std::string hub_folder(std::string repository) {
  return std::string(kHubPrefix) + repository.replace(repository.find('/'), 1, "--");
}

std::string repository_of(const std::string& hub_folder) {
  std::string name = hub_folder.substr(kHubPrefix.size());
  const size_t dashes = name.find("--");
  return dashes == std::string::npos ? name : name.replace(dashes, 2, "/");
}

std::string pull_command(std::string_view name) { return fmt::format("moesaic pull {}", name); }

Result<fs::path> current_snapshot(const fs::path& folder, const std::string& revision) {
  constexpr size_t kMostName = 256;
  const std::string_view ref_name = revision.empty() ? kMainRevision : revision;
  std::string current;
  if (auto ref = read_whole((folder / "refs" / ref_name).string(), kMostName); ref.ok())
    current = std::move(ref).value();
  current.erase(std::ranges::find_if(current, [](unsigned char c) { return std::isspace(c) != 0; }),
                current.end());
  const std::vector<std::string> all = names_in(folder / "snapshots");
  // A snapshot that moesaic is fetching has no ref before it is complete.
  const bool unfinished = std::ranges::any_of(
      names_in(folder / "blobs"), [](const std::string& blob) { return blob.ends_with(".incomplete"); });
  const std::string& named = revision.empty() && all.size() == 1 ? all.front() : revision;
  if (current.empty() && !unfinished) current = named;
  if (all.empty()) {
    for (const fs::path& place : {folder, folder / "snapshots"}) RETURN_IF_ERROR(may_look(place));
  }
  const std::string name = folder.filename().string();
  const RepositoryName repository{.repository = name.starts_with(kHubPrefix) ? repository_of(name) : "MODEL",
                                  .revision = revision};
  if (std::ranges::find(all, current) == all.end())
    return error(StatusCode::kNotFound, "{}: no complete snapshot{}; get it again: {}", folder.string(),
                 revision.empty() ? "" : " of " + revision, pull_command(repository.full_name()));
  return folder / "snapshots" / current;
}

std::vector<std::string> lm_studio_roots(const std::vector<std::string>& homes) {
  std::vector<std::string> roots;
  const auto add = [&](const std::string& root) {
    if (std::ranges::find(roots, root) == roots.end() && is_folder(root)) roots.push_back(root);
  };
  for (const std::string& home : homes) {
    const Json named = member(small_json((fs::path(home) / "settings.json").string()), "downloadsFolder");
    if (named.is_string()) add(named.get<std::string>());
    add(home + "/models");
  }
  return roots;
}

std::vector<std::string> lm_studio_sources(const std::string& home, const std::string& name) {
  std::vector<std::string> names;
  const Json dependencies = member(
      small_json((fs::path(home) / "hub" / "models" / name / "manifest.json").string()), "dependencies");
  for (const Json& dependency : dependencies.is_array() ? dependencies : Json::array()) {
    const Json sources = member(dependency, "sources");
    for (const Json& source : sources.is_array() ? sources : Json::array()) {
      const Json user = member(source, "user"), repository = member(source, "repo");
      if (!user.is_string() || !repository.is_string()) continue;
      std::string full = user.get<std::string>() + "/" + repository.get<std::string>();
      if (const auto parsed = repository_name(full); parsed && parsed->repository == full)
        names.push_back(std::move(full));
    }
  }
  return names;
}

}  // namespace moesaic
