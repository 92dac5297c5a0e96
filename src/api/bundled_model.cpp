#include "api/bundled_model.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr int kLevels = 4;  // PREFIX/lib/x86_64-linux-gnu/libmoesaic.so, build/release/apps/moesaic

// The file that holds this code.
fs::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&bundled_model), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored);
}

void add_places(const fs::path& file, std::vector<fs::path>& places) {
  fs::path folder = file.parent_path();
  for (int i = 0; i < kLevels && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    places.push_back(folder / "share/moesaic/models");
    places.push_back(folder / "models");
  }
}

}  // namespace

Result<std::string> bundled_model() {
  std::vector<fs::path> places;
  if (const char* folder = std::getenv("MOESAIC_MODELS")) places.emplace_back(folder);
  std::error_code ignored;
  add_places(own_file(), places);  // first: a Python package's own is of its version
  add_places(fs::read_symlink("/proc/self/exe", ignored), places);
  // A package's, for programs elsewhere that link the static library.
  for (const char* prefix : {"/usr/local", "/usr"})
    places.push_back(fs::path(prefix) / "share/moesaic/models");
  for (const fs::path& place : places) {
    if (fs::exists(place / "tiny" / "config.json", ignored)) return (place / "tiny").string();
  }
  return error(StatusCode::kNotFound,
               "the bundled model 'tiny' is not installed; set MOESAIC_MODELS to the folder that holds it");
}

Result<std::string> bundled_head() {
  ASSIGN_OR_RETURN(const std::string model, bundled_model());
  return model + "-eagle3";
}

Result<std::string> model_path(const std::string& model) {
  if (model.empty()) return invalid("the model's path is empty");
  return model == "tiny" ? bundled_model() : model;
}

}  // namespace moesaic
