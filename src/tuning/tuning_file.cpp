#include "tuning/tuning_file.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

std::string text_of(const TuningKey& k) {
  return fmt::format("moesaic tuning 1\ndevice {}\ndriver {}\nprogram {}\nshape {} {} {} {}\nconfigs {}\n",
                     k.device, k.driver, k.program, k.experts, k.top_k, k.hidden, k.intermediate, k.configs);
}

}  // namespace

std::string tuning_path(const std::string& folder, const TuningKey& key) {
  return FileCache(folder).path_of(text_of(key));
}

std::vector<TunedStep> read_tuning(const std::string& folder, const TuningKey& key) {
  std::vector<TunedStep> steps;
  std::istringstream lines(FileCache(folder).find(text_of(key)).value_or(""));
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
  std::string text;
  for (const TunedStep& s : steps) text += fmt::format("{} {:.9e} {}\n", s.tokens, s.seconds, s.config);
  return FileCache(folder).put(text_of(key), text);
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
