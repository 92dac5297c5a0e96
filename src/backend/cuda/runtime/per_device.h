// Properties to find out or to set once for each device: a kernel's attributes, its clusters, its code.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "moesaic/status.h"

namespace moesaic::cuda {

// The device that this thread's calls go to.
Result<int> current_device();

// A value for each device, made at the first use there. Thread-safe; afterwards one load, also while a graph
// is captured. A static object: one for each kernel.
template <class T>
class PerDevice {
 public:
  static constexpr int kMostDevices = 64;

  // make(): Result<T>, on the current device; called again at the next use if it fails.
  template <class Make>
  Result<T> get(const Make& make) {
    const Result<int> device = current_device();
    return device.ok() ? get_for(device.value(), make) : device.status();
  }
  template <class Make>
  Result<T> get_for(int device, const Make& make) {
    if (device < 0 || device >= kMostDevices)
      return Status(StatusCode::kUnsupported, "cuda: too many devices");
    Entry& entry = entries_[static_cast<size_t>(device)];
    if (entry.made.load(std::memory_order_acquire)) return entry.value;
    const std::lock_guard lock(mutex_);
    if (!entry.made.load(std::memory_order_relaxed)) {
      Result<T> made = make();
      if (!made.ok()) return made;
      entry.value = std::move(made).value();
      entry.made.store(true, std::memory_order_release);
    }
    return entry.value;
  }

 private:
  struct Entry {
    std::atomic<bool> made = false;
    T value{};
  };
  std::array<Entry, kMostDevices> entries_;
  std::mutex mutex_;
};

// Work to do once on each device: setup(): Status.
class OncePerDevice {
 public:
  template <class Setup>
  Status run(const Setup& setup) {
    return done_.get(as_value(setup)).status();
  }
  template <class Setup>
  Status run_for(int device, const Setup& setup) {
    return done_.get_for(device, as_value(setup)).status();
  }

 private:
  template <class Setup>
  static auto as_value(const Setup& setup) {
    return [&setup]() -> Result<bool> {
      const Status status = setup();
      return status.ok() ? Result<bool>(true) : status;
    };
  }
  PerDevice<bool> done_;
};

}  // namespace moesaic::cuda
