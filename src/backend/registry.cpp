#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"

namespace moesaic {
namespace {

struct Entry {
  const char* name;
  // Empty when this machine can run the backend, else the reason that it cannot.
  std::string (*absent)();
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions&);
};

std::string never_absent() { return {}; }
std::string no_cuda() { return "this build has no CUDA backend"; }
Result<std::unique_ptr<Backend>> create_nothing(const BackendOptions&) {
  return invalid("device cuda: {}; use --device cpu", no_cuda());
}

// In the order of preference of "auto".
constexpr Entry kBackends[] = {
    {"cuda", no_cuda, create_nothing},
    {"cpu", never_absent, create_cpu_backend},
    {"reference", never_absent, create_reference_backend},
};

}  // namespace

Result<std::unique_ptr<Backend>> create_backend(const std::string& device, const BackendOptions& options) {
  const std::string kind = device.substr(0, device.find(':'));
  for (const Entry& entry : kBackends) {
    if (kind == entry.name || (kind == "auto" && entry.absent().empty())) return entry.create(options);
  }
  return invalid("unknown device '{}': use auto, cpu, cuda, cuda:N or reference", device);
}

std::vector<std::string> list_backends() {
  std::vector<std::string> lines;
  for (const Entry& entry : kBackends) {
    const std::string reason = entry.absent();
    lines.push_back(reason.empty() ? entry.name : fmt::format("{} (absent: {})", entry.name, reason));
  }
  return lines;
}

}  // namespace moesaic
