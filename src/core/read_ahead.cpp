#include "core/read_ahead.h"

#include <algorithm>
#include <system_error>

namespace moesaic {

ReadAhead::ReadAhead(const ModelWeights& weights) {
  if (!weights.prefetch) return;
  try {
    thread_ = std::thread([this, &weights] { read(weights); });
  } catch (const std::system_error&) {  // no thread to be had: packing reads for itself
  }
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  moved_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::packing(int layer) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, layer + 1);
  }
  moved_.notify_one();
}

void ReadAhead::read(const ModelWeights& weights) {
  for (int layer = -1; layer < static_cast<int>(weights.layers.size()); ++layer) {
    {
      std::unique_lock lock(mutex_);
      moved_.wait(lock, [&] { return ended_ || layer <= wanted_; });
      if (ended_) return;
    }
    weights.prefetch(layer);
  }
}

}  // namespace moesaic
