#include "backend/cpu/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "backend/cpu/tuning.h"
#include "base/seconds.h"

namespace moesaic::cpu {
namespace {

using Lanes = uint64_t __attribute__((vector_size(64)));

constexpr size_t kPassBytes = 96u << 20;  // read by a timed pass: some milliseconds
constexpr int kStep = 256;                // bytes that are asked for, and read, at a time

template <Prefetch kHint>
uint64_t sum_chunk(const std::byte* p, const ReadPattern& pattern) {
  const int64_t stream = pattern.chunk / pattern.streams;
  const std::byte* ahead = p + pattern.ahead.distance;
  Lanes sum[4] = {};
  for (int64_t i = 0; i < stream; i += kStep) {
    for (int s = 0; s < pattern.streams; ++s) {
      const int64_t at = s * stream + i;
      for (int j = 0; j < kStep; j += 64) prefetch_line<kHint>(ahead + at + j);
      for (int j = 0; j < 4; ++j) {
        Lanes v;
        std::memcpy(&v, p + at + 64 * j, 64);
        sum[j] += v;
      }
    }
  }
  return sum[0][0] + sum[1][1] + sum[2][2] + sum[3][3];
}

uint64_t read_chunk(const std::byte* p, const ReadPattern& pattern) {
  switch (pattern.ahead.prefetch) {
    case Prefetch::kNone:
      break;
    case Prefetch::kT0:
      return sum_chunk<Prefetch::kT0>(p, pattern);
    case Prefetch::kT1:
      return sum_chunk<Prefetch::kT1>(p, pattern);
    case Prefetch::kNta:
      return sum_chunk<Prefetch::kNta>(p, pattern);
  }
  return sum_chunk<Prefetch::kNone>(p, pattern);
}

// Reads the memory in passes, round and round, so that what one pass leaves in the caches is not what the
// next one reads.
class Reader {
 public:
  Reader(const MemoryByNode& memory, ThreadPool& pool) : pool_(pool), units_(memory.size()) {
    size_t bytes = 0;
    for (const auto& parts : memory) {
      for (const auto& part : parts) bytes += part.size();
    }
    const size_t unit = bytes >= 64u << 20 ? kUnit : 1 << 12;  // a share for every thread
    for (size_t node = 0; node < memory.size(); ++node) {
      for (const auto& part : memory[node]) {
        for (size_t at = 0; at + unit <= part.size(); at += unit) units_[node].push_back(part.data() + at);
      }
    }
    unit_ = static_cast<int64_t>(unit);
  }
  bool empty() const {
    return std::any_of(units_.begin(), units_.end(), [](const auto& own) { return own.empty(); });
  }

  double gb_s(ReadPattern pattern) {
    pattern.chunk = std::min(pattern.chunk, unit_);
    int64_t count = 0;
    for (const auto& own : units_) count += std::ssize(own);
    const int64_t parts = unit_ / pattern.chunk,
                  units = std::min<int64_t>(count, static_cast<int64_t>(kPassBytes) / unit_);
    const auto start = std::chrono::steady_clock::now();
    const auto node_of = [&](int64_t i) {
      int node = 0;
      while (i >= pool_.node_begin(units * parts, node + 1)) ++node;
      return node;
    };
    pool_.for_each_by_node(units * parts, [&](int64_t i, int) {
      const int node = node_of(i);
      const int64_t at = i - pool_.node_begin(units * parts, node);
      const auto& own = units_[node];
      sink_ += read_chunk(own[(next_ + at / parts) % std::ssize(own)] + at % parts * pattern.chunk, pattern);
    });
    const double seconds = seconds_since(start);
    next_ += units;
    return static_cast<double>(units * unit_) / seconds / 1e9;
  }

 private:
  static constexpr size_t kUnit = 1 << 20;
  ThreadPool& pool_;
  std::vector<std::vector<const std::byte*>> units_;  // for each node
  int64_t unit_ = 0, next_ = 0;
  std::atomic<uint64_t> sink_{0};
};

struct Rated {
  ReadPattern pattern;
  double gb_s;
};

// In turn, a few rounds; the best of each, in falling order.
std::vector<Rated> rate(Reader& reader, const std::vector<ReadPattern>& patterns, int rounds) {
  std::vector<Rated> rated;
  for (const ReadPattern& p : patterns) rated.push_back({p, 0});
  for (int round = 0; round < rounds; ++round) {
    for (Rated& r : rated) r.gb_s = std::max(r.gb_s, reader.gb_s(r.pattern));
  }
  std::ranges::stable_sort(rated, std::greater(), &Rated::gb_s);
  return rated;
}

std::vector<ReadPattern> best_patterns(const std::vector<Rated>& rated, size_t count) {
  std::vector<ReadPattern> best;
  for (size_t i = 0; i < std::min(count, rated.size()); ++i) best.push_back(rated[i].pattern);
  return best;
}

// Hints and distances first, then streams and lengths for the two best.
std::vector<ReadPattern> search(Reader& reader) {
  std::vector<ReadPattern> patterns;
  for (const CpuTuning& t : tunables().front().candidates({})) patterns.push_back({.ahead = t.experts});
  std::vector<ReadPattern> wider;
  for (const ReadPattern& best : best_patterns(rate(reader, patterns, 2), 2)) {
    for (const int streams : {1, 2, 4}) {
      for (const int64_t chunk : {1 << 20, 1 << 17})
        wider.push_back({.ahead = best.ahead, .streams = streams, .chunk = chunk});
    }
  }
  return best_patterns(rate(reader, wider, 2), 3);
}

}  // namespace

double measure_read_bandwidth(const MemoryByNode& memory, ThreadPool& pool,
                              std::vector<ReadPattern>& patterns) {
  Reader reader(memory, pool);
  if (reader.empty()) return 0;
  if (patterns.empty()) patterns = search(reader);
  return rate(reader, patterns, 4).front().gb_s;
}

}  // namespace moesaic::cpu
