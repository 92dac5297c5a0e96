// The exchange between ranks whose memory is one process's: each makes some columns of a matrix of
// activations, and all get the whole (docs/design/parallel.md).
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/patience.h"
#include "core/rank_share.h"
#include "moesaic/status.h"

namespace moesaic {

// As condition.wait_for(), with Patience's seconds.
template <typename Over>
bool wait_patiently(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, double seconds,
                    const Over& over) {
  Patience patience(seconds);
  do {
    if (condition.wait_for(lock, patience.slice(), over)) return true;
  } while (!patience.ended());
  return false;
}

// A part of a matrix of floats [rows, columns.count] that one rank has made.
struct RankPart {
  const float* data = nullptr;
  int64_t stride = 0;  // floats from one row to the next
  int64_t rows = 0;
  Range columns;  // a part of the whole matrix
};

// One for all ranks. A rank that waits longer than `limit` seconds for another fails the exchange; once it
// has failed, for whatever reason, nobody waits any more and what gather() leaves behind is of no use.
class Exchange {
 public:
  Exchange(int ranks, double limit) : limit_(limit), ranks_(static_cast<size_t>(ranks)) {}

  // Called by every rank, in the same order with the same number of rows. whole: [rows, width]; null: this
  // rank takes nothing. `part` may lie in `whole`, at its own columns.
  void gather(int rank, const RankPart& part, float* whole, int64_t width);
  // Returns every rank's word, by rank, and nothing after a failure. Every rank calls it.
  std::vector<uint64_t> share(int rank, uint64_t word);
  // The first failure counts.
  void fail(const Status& status);
  Status failure();
  // While no rank is in gather(): as if nothing had been exchanged. limit: from now on.
  void reset(double limit);

 private:
  struct Part {
    std::vector<float> data;
    Range columns;
  };
  struct Rank {
    // By turns, so that one meeting is enough: a rank writes a buffer again only after it has met the others
    // once more, and they came there after they had read it.
    std::array<Part, 2> parts;
    uint64_t turn = 0;
    uint64_t word = 0;
  };
  bool meet(int64_t rows);

  double limit_;
  std::vector<Rank> ranks_;
  std::mutex mutex_;
  std::condition_variable met_;
  size_t arrived_ = 0;
  int64_t rows_ = 0;  // given by the ranks that have arrived
  uint64_t meetings_ = 0;
  Status failure_;
};

// A backend's place among the ranks. By default it is alone.
struct RankPlace {
  RankShare share;
  std::shared_ptr<Exchange> exchange;  // null: one rank

  bool alone() const { return exchange == nullptr; }
  // Fills the other ranks' columns of x: [rows, width].
  void gather(float* x, int64_t rows, int64_t width, Range mine) const {
    if (!alone())
      exchange->gather(share.rank, {.data = x + mine.first, .stride = width, .rows = rows, .columns = mine},
                       x, width);
  }
};

}  // namespace moesaic
