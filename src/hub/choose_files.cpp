#include "hub/choose_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"
#include "checkpoint/gguf_names.h"

namespace moesaic::hub {
namespace {

constexpr std::string_view kOriginal = "original/";

bool at_top(const std::string& path) { return path.find('/') == std::string::npos; }

// Weights of other programs, and pictures.
bool is_of_others(const std::string& path) {
  constexpr std::string_view kSuffixes[] = {".bin", ".pt",   ".pth", ".onnx", ".h5",  ".msgpack", ".gguf",
                                            ".ot",  ".ckpt", ".png", ".jpg",  ".gif", ".svg",     ".webp",
                                            ".mp4", ".zip",  ".tar", ".gz",   ".npz", ".tflite",  ".mlmodel"};
  const std::string small = lower_case(path);
  return std::ranges::any_of(kSuffixes, [&](std::string_view s) { return small.ends_with(s); });
}

// The files at the top, or those of a subfolder with what the top has beside.
Choice folder_choice(const Listing& listing, std::string_view subfolder) {
  Choice choice;
  for (const RemoteFile& file : listing.files) {
    const bool inside =
        !subfolder.empty() && file.path.starts_with(subfolder) && at_top(file.path.substr(subfolder.size()));
    if ((at_top(file.path) || inside) && !is_of_others(file.path)) choice.files.push_back(file);
  }
  return choice;
}

bool has_safetensors(const Listing& listing, std::string_view subfolder) {
  return std::ranges::any_of(listing.files, [&](const RemoteFile& file) {
    return file.path.starts_with(subfolder) && at_top(file.path.substr(subfolder.size())) &&
           file.path.ends_with(".safetensors");
  });
}

Result<Choice> gguf_choice(const Listing& listing, const std::string& first) {
  Choice choice{.opens = first};
  for (const std::string& part : gguf_parts(first)) {
    const auto file = std::ranges::find(listing.files, part, &RemoteFile::path);
    if (file == listing.files.end())
      return error(StatusCode::kNotFound, "{}: it has no file {}", listing.repository, part);
    choice.files.push_back(*file);
  }
  return choice;
}

int64_t bytes_of(const Choice& choice) {
  int64_t bytes = 0;
  for (const RemoteFile& file : choice.files) bytes += file.size;
  return bytes;
}

// Gives the shortest name that means the model: a tag, or the file.
std::string choice_name(const std::vector<std::string>& models, const std::string& model) {
  const std::string tag = gguf_tag(model);
  const auto same = with_gguf_tag(models, tag);
  return same.size() == 1 && same.front() == model ? ":" + tag : "/" + model;
}

Status several(const Listing& listing, const std::vector<std::string>& all,
               const std::vector<std::string>& meant) {
  constexpr double kGiga = 1e9;
  std::vector<std::string> names;
  for (const std::string& model : meant) {
    const Result<Choice> choice = gguf_choice(listing, model);
    const double size = choice.ok() ? static_cast<double>(bytes_of(choice.value())) : 0;
    names.push_back(fmt::format("{} ({:.1f} GB)", choice_name(all, model), size / kGiga));
  }
  return invalid("{}: {} models; put one of these behind the name: {}", listing.repository, meant.size(),
                 fmt::to_string(fmt::join(names, ", ")));
}

}  // namespace

Result<Choice> choose_files(const Listing& listing, const RepositoryName& name, bool usual) {
  if (!name.file.empty()) return gguf_choice(listing, gguf_parts(name.file).front());
  if (name.tag.empty() && has_safetensors(listing, "")) return folder_choice(listing, "");
  std::vector<std::string> paths;
  for (const RemoteFile& file : listing.files) paths.push_back(file.path);
  const std::vector<std::string> models = without_heads(gguf_models(paths));
  std::vector<std::string> meant = name.tag.empty() ? models : with_gguf_tag(models, name.tag);
  for (const char* tag : {"Q4_K_M", "Q8_0"}) {
    const std::vector<std::string> found = with_gguf_tag(meant, tag);
    if (usual && name.tag.empty() && meant.size() > 1 && found.size() == 1) meant = found;
  }
  if (meant.size() == 1) return gguf_choice(listing, meant.front());
  if (meant.size() > 1) return several(listing, models, meant);
  if (!models.empty()) {
    const Status there = several(listing, models, models);
    return error(StatusCode::kNotFound, "{} has no {}; {}", listing.repository, name.tag, there.message());
  }
  if (!name.tag.empty() && has_safetensors(listing, ""))
    return error(StatusCode::kNotFound, "{}: it has no GGUF file, so no {}; its .safetensors: {}",
                 listing.repository, name.tag, pull_command(name.full_name()));
  if (name.tag.empty() && has_safetensors(listing, kOriginal)) return folder_choice(listing, kOriginal);
  return error(StatusCode::kNotFound, "{}: it has no .safetensors and no .gguf file{}", listing.repository,
               listing.files.empty() ? "; it is empty" : "");
}

}  // namespace moesaic::hub
