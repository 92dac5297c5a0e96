// Reads a model's file ahead of the loop that packs it, so that disk and processor work at the same time.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/weights.h"

namespace moesaic {

class ReadAhead {
 public:
  // Starts with what belongs to no layer (-1) and the first layer. weights outlives this. Without
  // weights.prefetch, nothing happens.
  explicit ReadAhead(const ModelWeights& weights);
  // Waits for the call of prefetch that is in flight.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // This layer is being packed: the next one may be read, and no more, so that memory holds two at most.
  void packing(int layer);

 private:
  void read(const ModelWeights& weights);

  std::mutex mutex_;
  std::condition_variable moved_;
  int wanted_ = 0;  // the last layer that may be read
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace moesaic
