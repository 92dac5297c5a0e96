#include "backend/cpu/expert_pages.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/page_advice.h"
#include "base/seconds.h"

namespace moesaic::cpu {
namespace {

// Advice about an expert's matrix in the file. None of it changes the values.
void advise(const MatrixView& m, int advice) {
  const auto advise_rows = [&](const std::byte* data, int64_t stride) {
    advise_pages({data, static_cast<size_t>(m.rows * stride)}, advice);
  };
  if (m.row_stride > 0) advise_rows(m.data, m.row_stride);
  if (m.scales != nullptr && m.scale_stride > 0) advise_rows(m.scales, m.scale_stride);
}

}  // namespace

int ExpertSource::places(int experts, int top_k) const {
  if (share >= 1) return experts;
  return std::clamp(static_cast<int>(std::floor(share * experts)), std::min(top_k, experts), experts);
}

ExpertSource source_of(const ModelWeights& weights, double share) {
  return {.share = share, .storage = weights.storage, .intact = weights.intact};
}

ExpertPages::ExpertPages(std::vector<ExpertsView> sections, int places, const ExpertSource& source,
                         std::string name, const Kernels& kernels, ThreadPool& pool)
    : sections_(std::move(sections)),
      source_(source),
      name_(std::move(name)),
      kernels_(kernels),
      pool_(pool),
      place_of_(static_cast<size_t>(sections_[0].count), -1),
      expert_in_(static_cast<size_t>(places), -1),
      used_(static_cast<size_t>(places), 0) {}

std::vector<int32_t> ExpertPages::ordered(std::span<const int32_t> experts) const {
  std::vector<int32_t> order(experts.begin(), experts.end());
  std::stable_partition(order.begin(), order.end(), [&](int32_t expert) { return place_of(expert) >= 0; });
  return order;
}

// The place that was used least recently; it is used now. Those that were used now already are not taken.
int ExpertPages::take_place() {
  const auto place = std::ranges::min_element(used_) - used_.begin();
  MOESAIC_CHECK(used_[static_cast<size_t>(place)] < clock_);
  used_[static_cast<size_t>(place)] = clock_;
  int& expert = expert_in_[static_cast<size_t>(place)];
  if (expert >= 0) place_of_[static_cast<size_t>(expert)] = -1;
  expert = -1;
  return static_cast<int>(place);
}

Result<size_t> ExpertPages::bring(const PackedMatrix& m, std::span<const int32_t> wanted) {
  wanted = wanted.first(std::min(wanted.size(), used_.size()));
  ++clock_;
  std::vector<int32_t> missing;
  for (const int32_t expert : wanted) {
    const int place = place_of(expert);
    if (place < 0) missing.push_back(expert);
    if (place >= 0) used_[static_cast<size_t>(place)] = clock_;
  }
  if (missing.empty()) return wanted.size();
  std::vector<int> places;
  for (size_t i = 0; i < missing.size(); ++i) places.push_back(take_place());
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(pack(m, missing, places));
  seconds_ += seconds_since(start);
  for (size_t i = 0; i < missing.size(); ++i) {
    place_of_[static_cast<size_t>(missing[i])] = places[i];
    expert_in_[static_cast<size_t>(places[i])] = missing[i];
  }
  read_ += std::ssize(missing);
  return wanted.size();
}

Status ExpertPages::pack(const PackedMatrix& m, std::span<const int32_t> experts,
                         std::span<const int> places) {
  std::vector<MatrixView> matrices;
  for (const int32_t expert : experts) {
    for (const ExpertsView& section : sections_) matrices.push_back(section.at(expert));
  }
  for (const MatrixView& matrix : matrices) advise(matrix, MADV_WILLNEED);
  Status packed =
      pack_sections(m, places, alternating_panels(matrices, sections_.size()), name_, kernels_, pool_);
  // First, since weights that are not there may look damaged in other ways.
  if (source_.intact) RETURN_IF_ERROR(source_.intact());
  // The system gives up these pages of the file first where memory is short.
  for (const MatrixView& matrix : matrices) advise(matrix, MADV_COLD);
  return packed;
}

}  // namespace moesaic::cpu
