#include "backend/cuda/runtime/step_wait.h"

#include <atomic>
#include <limits>
#include <optional>
#include <thread>

#include "backend/cuda/runtime/device.h"
#include "backend/patience.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr std::chrono::seconds kBusy(1);
constexpr std::chrono::milliseconds kPause(10);

std::atomic<bool> lost = false;

}  // namespace

bool device_is_lost() { return lost.load(std::memory_order_relaxed); }

Status lost_device() {
  return error(StatusCode::kInternal, "cuda: the GPU did not end an earlier step; restart the program");
}

Status StepWait::operator()(cudaEvent_t event, const char* what) const {
  return until([event] { return cudaEventQuery(event); }, what);
}
Status StepWait::operator()(cudaStream_t stream, const char* what) const {
  return until([stream] { return cudaStreamQuery(stream); }, what);
}

Status StepWait::until(const std::function<cudaError_t()>& query, const char* what) const {
  cudaError_t code = query();
  if (code != cudaErrorNotReady) return check(code, what);
  if (device_is_lost()) return lost_device();
  const double limit = limit_.count() > 0 ? limit_.count() : std::numeric_limits<double>::infinity();
  const auto begun = std::chrono::steady_clock::now();
  std::optional<Patience> patience(limit);
  uint32_t seen = progress_ ? progress_() : 0;
  while ((code = query()) == cudaErrorNotReady) {
    const uint32_t now = progress_ ? progress_() : 0;
    if (std::exchange(seen, now) != now) patience.emplace(limit);
    if (patience->ended()) {
      lost = true;
      return error(
          StatusCode::kInternal,
          "cuda: {}: the GPU has not ended it for {:g} s and counts as lost; restart the program (dmesg "
          "may say why)",
          what, limit_.count());
    }
    if (std::chrono::steady_clock::now() - begun > kBusy) std::this_thread::sleep_for(kPause);
    if (now != 0) std::this_thread::yield();  // the host's threads may be as many as its CPUs
  }
  cudaGetLastError();  // cudaErrorNotReady
  return check(code, what);
}

}  // namespace moesaic::cuda
