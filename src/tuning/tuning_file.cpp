#include "tuning/tuning_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

// The key stands in the file as its first lines, so that a clash of names is noticed.
std::string header(const TuningKey& k) {
  return fmt::format("moesaic tuning 1\ndevice {}\ndriver {}\nprogram {}\nshape {} {} {} {}\nconfigs {}\n",
                     k.device, k.driver, k.program, k.experts, k.top_k, k.hidden, k.intermediate, k.configs);
}

std::string with_checksum(const std::string& text) {
  return text + fmt::format("checksum {:016x}\n", fnv1a(text));
}

std::string read_all(const std::string& path) {
  constexpr std::streamsize kMost = 1 << 20;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMost, '\0');
  in.read(text.data(), kMost);
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

std::string tuning_path(const std::string& folder, const TuningKey& key) {
  return fmt::format("{}/moe-{:016x}.txt", folder, fnv1a(header(key)));
}

std::vector<TunedStep> read_tuning(const std::string& folder, const TuningKey& key) {
  if (folder.empty()) return {};
  const std::string text = read_all(tuning_path(folder, key)), head = header(key);
  const size_t end = text.rfind("checksum ");
  if (!text.starts_with(head) || end == std::string::npos || with_checksum(text.substr(0, end)) != text)
    return {};
  std::vector<TunedStep> steps;
  std::istringstream lines(text.substr(head.size(), end - head.size()));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    TunedStep step;
    if (!(fields >> step.tokens >> step.seconds >> std::ws) || !std::getline(fields, step.config)) return {};
    steps.push_back(std::move(step));
  }
  return steps;
}

Status write_tuning(const std::string& folder, const TuningKey& key, const std::vector<TunedStep>& steps) {
  if (folder.empty())
    return error(StatusCode::kIo, "no folder for measurements; set XDG_CACHE_HOME or HOME to a full path");
  std::string text = header(key);
  for (const TunedStep& s : steps) text += fmt::format("{} {:.9e} {}\n", s.tokens, s.seconds, s.config);
  text = with_checksum(text);
  return write_whole(tuning_path(folder, key), text);
}

const TunedStep* nearest_step(const std::vector<TunedStep>& steps, int tokens) {
  const auto distance = [&](const TunedStep& s) {
    return std::abs(std::log2(static_cast<double>(s.tokens) / tokens));
  };
  const auto best = std::min_element(steps.begin(), steps.end(), [&](const TunedStep& a, const TunedStep& b) {
    return distance(a) < distance(b);
  });
  if (best == steps.end()) return nullptr;
  const bool beyond = tokens > best->tokens && best + 1 == steps.end();
  return beyond || distance(*best) <= 1 ? &*best : nullptr;
}

}  // namespace moesaic
