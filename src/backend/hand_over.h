// A device hands rows to the host in the middle of a step, and takes the experts' outputs back, through
// memory that both reach. Nothing of the driver is called: both sides poll a word of the other, so it works
// inside a captured graph.
//
// Order    The device writes the rows, then `posted` (release). The host sees `posted` (acquire), reads the
//          rows, writes `out`, then `answered` (release). The device sees `answered` (acquire) and reads
//          `out`. The device's next hand-over comes behind that, so nobody overwrites what is still read, and
//          one memory is enough for all layers and steps.
// Epochs   Each hand-over has one, larger than those before; they may wrap around, since their difference is
//          signed. One that nobody waits for any more is answered all the same, and its answer is ignored.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "backend/host_experts.h"
#include "backend/hot_experts.h"
#include "moesaic/status.h"

namespace moesaic {

struct HandOverWords {
  alignas(128) uint32_t posted = 0;    // by the device: the epoch
  int32_t layer = 0, rows = 0;         // no rows: the step has a fault, and there is nothing to do
  alignas(128) uint32_t answered = 0;  // by the host: the epoch
  uint32_t failed = 0;                 // 1: there is no output
};

// Places in the memory that both reach.
struct HandOver {
  HandOverWords* words = nullptr;
  float* normed = nullptr;   // [rows, hidden]
  int32_t* ids = nullptr;    // [rows, top_k]; computed_there() of those that the device computes
  float* weights = nullptr;  // [rows, top_k]
  float* out = nullptr;      // [rows, hidden]
  int top_k = 0;
};
// Bytes of memory for hand-overs of at most so many rows.
size_t hand_over_bytes(int rows, int hidden, int top_k);
// memory: hand_over_bytes() of them, all zero, aligned to 128.
HandOver hand_over_in(std::byte* memory, int rows, int hidden, int top_k);

// The host's side: a thread that computes what is handed over. It polls while there is something to come, and
// sleeps otherwise.
//
// Thread-safety: expect() and forget() may be called from one thread at a time.
class HandOverServer {
 public:
  // All of these outlive the server, and nobody else uses the experts while hand-overs are expected. use:
  // counts what is chosen; may be null.
  HandOverServer(const HandOver& at, HostExperts& experts, ExpertUse* use = nullptr);
  // Finishes the hand-over that it is at. No device may wait any more.
  ~HandOverServer();
  HandOverServer(const HandOverServer&) = delete;
  HandOverServer& operator=(const HandOverServer&) = delete;

  // Hand-overs up to this epoch will come. Call it before the device may post the first of them.
  void expect(uint32_t last_epoch);
  // A step failed, and nothing of it runs any more: its hand-overs that have not come will not come.
  void forget();
  // Why hand-overs failed since the last call.
  Status failure();

 private:
  void serve();
  bool wait_for_post(uint32_t& epoch);
  void answer(uint32_t epoch);
  bool expects(uint32_t seen) const {
    return static_cast<int32_t>(last_.load(std::memory_order_relaxed) - seen) > 0;
  }

  HandOver at_;
  HostExperts& experts_;
  ExpertUse* use_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::atomic<uint32_t> last_;  // is written under mutex_
  std::atomic<bool> ended_{false};
  uint32_t seen_;  // the epoch that the server's thread has answered last
  Status failure_;
  std::thread thread_;
};

}  // namespace moesaic
