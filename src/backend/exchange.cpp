#include "backend/exchange.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

void copy_rows(const RankPart& from, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < from.rows; ++r)
    std::copy_n(from.data + r * from.stride, from.columns.count, to + r * to_stride);
}

}  // namespace

bool Exchange::meet(int64_t rows) {
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return false;
  if (arrived_ > 0 && rows != rows_) {
    failure_ = error(StatusCode::kInternal, "ranks differ: {} rows and {} rows in one exchange", rows_, rows);
    met_.notify_all();
    return false;
  }
  rows_ = rows;
  const uint64_t meeting = meetings_;
  if (++arrived_ == ranks_.size()) {
    arrived_ = 0, ++meetings_;
    met_.notify_all();
    return true;
  }
  const auto over = [&] { return meetings_ != meeting || !failure_.ok(); };
  if (!wait_patiently(met_, lock, limit_, over)) {
    failure_ = error(StatusCode::kInternal, "{} of {} ranks did not come to an exchange within {:g} seconds",
                     ranks_.size() - arrived_, ranks_.size(), limit_);
    met_.notify_all();
  }
  return meetings_ != meeting;
}

void Exchange::gather(int rank, const RankPart& part, float* whole, int64_t width) {
  if (!failure().ok()) return;  // others may still read what the meeting before last has given them
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const size_t buffer = own.turn++ % 2;
  Part& mine = own.parts[buffer];
  mine.columns = part.columns;
  mine.data.resize(static_cast<size_t>(part.rows * part.columns.count));
  copy_rows(part, mine.data.data(), part.columns.count);
  if (!meet(part.rows) || whole == nullptr) return;
  for (const Rank& other : ranks_) {
    const Part& from = other.parts[buffer];
    float* const to = whole + from.columns.first;
    if (to != part.data)
      copy_rows({from.data.data(), from.columns.count, part.rows, from.columns}, to, width);
  }
}

std::vector<uint64_t> Exchange::share(int rank, uint64_t word) {
  ranks_[static_cast<size_t>(rank)].word = word;
  if (!meet(0)) return {};
  std::vector<uint64_t> words;
  for (const Rank& other : ranks_) words.push_back(other.word);
  return meet(0) ? words : std::vector<uint64_t>();  // nobody gives another word before all have read
}

void Exchange::fail(const Status& status) {
  const std::scoped_lock lock(mutex_);
  if (failure_.ok()) failure_ = status;
  met_.notify_all();
}

Status Exchange::failure() {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void Exchange::reset(double limit) {
  const std::scoped_lock lock(mutex_);
  limit_ = limit, failure_ = {}, arrived_ = 0;
  for (Rank& rank : ranks_) rank.turn = 0;
}

}  // namespace moesaic
