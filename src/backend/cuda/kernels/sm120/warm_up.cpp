#include "backend/warm_up.h"

#include <chrono>
#include <mutex>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/load_tile.h"
#include "backend/cuda/kernels/sm120/tile_code.h"
#include "base/error.h"
#include "base/seconds.h"
#include "base/thread_pool.h"

namespace moesaic {
namespace {

// Reports from several threads, one at a time; the first error stays.
class Progress {
 public:
  explicit Progress(const std::function<void(const WarmKernel&)>& report) : report_(report) {}
  void done(const WarmKernel& kernel) {
    const std::lock_guard lock(mutex_);
    if (report_) report_(kernel);
  }
  void failed(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  Status status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  const std::function<void(const WarmKernel&)>& report_;
  std::mutex mutex_;
  Status status_;
};

}  // namespace

Result<std::string> warm_up(const std::string& architecture, int threads,
                            const std::function<void(const WarmKernel&)>& report) {
  std::string target = architecture;
  if (target.empty()) {
    const auto code = cuda::sm120::device_code();
    if (!code.ok())
      return error(code.status().code(), "{}; give another machine's with --architecture",
                   code.status().message());
    if (!code.value().lacking) return code.value().architecture;
    target = code.value().architecture;
  }
  const std::vector<std::string> names = cuda::sm120::tile_names();
  const FileCache cache = cuda::sm120::kernel_cache();
  const std::string folder = cache_folder();
  Progress progress(report);
  ThreadPool pool(threads);
  pool.for_each(std::ssize(names), [&](int64_t i, int) {
    if (!progress.status().ok()) return;
    const auto start = std::chrono::steady_clock::now();
    const auto code = cuda::sm120::tile_code(names[i], target, cache);
    if (!code.ok()) return progress.failed(code.status());
    const bool cached = code.value().cached;
    // A kernel that was kept comes from the disk now.
    const auto kept = [&] {
      const auto again = cuda::sm120::tile_code(names[i], target, cache);
      return again.ok() && again.value().cached;
    };
    if (!cached && !kept())
      return progress.failed(
          error(StatusCode::kIo, "kernels cannot be kept on disk: {}",
                folder.empty() ? "set XDG_CACHE_HOME or HOME" : folder + " cannot be written or is full"));
    progress.done({.name = names[i], .cached = cached, .seconds = seconds_since(start)});
  });
  RETURN_IF_ERROR(progress.status());
  return target;
}

}  // namespace moesaic
