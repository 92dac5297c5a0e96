#include "grammar/mask_thread.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/helper_threads.h"
#include "base/thread_priority.h"

namespace moesaic::grammar {
namespace {

constexpr int kNice = 10;

}  // namespace

bool NextMask::compute(Effort effort) {
  const auto mask = matcher.allowed(effort);
  if (!mask) return false;
  status = mask->status();
  if (mask->ok()) allowed = mask->value();
  return true;
}

bool NextMask::compute_quickly() {
  const auto lock = matcher.try_lock();
  return lock && compute(Effort::kQuick);
}

bool NextMask::compute_slice() {
  try {
    const auto lock = matcher.lock();
    return compute(Effort::kSlice);
  } catch (const std::exception& e) {
    status = error(StatusCode::kOutOfMemory, "the answer's grammar: {}", e.what());
    return true;
  }
}

MaskThreads::MaskThreads(int most) : most_(static_cast<size_t>(most > 0 ? most : helper_threads())) {}

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::compute(std::shared_ptr<NextMask> mask) {
  {
    std::unique_lock lock(mutex_);
    const std::string& client = mask->client;
    waiting_.push(client, 0, std::move(mask));
    if (waiting_.size() > idle_ && threads_.size() < most_) start_thread();
    while (threads_.empty() && waiting_.size() > 0) compute_next(lock);
  }
  wake_.notify_one();
}

void MaskThreads::start_thread() {
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {  // a limit on threads: those that there are do the work
  }
}

void MaskThreads::wait_until(const NextMask& mask, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  done_.wait_until(lock, deadline, [&] { return mask.ready.load(std::memory_order_acquire); });
}

void MaskThreads::discard(std::shared_ptr<void> last) {
  {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) return;
    discarded_.push_back(std::move(last));
  }
  wake_.notify_one();
}

void MaskThreads::run() {
  lower_thread_priority(kNice);
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    wake_.wait(lock, [&] { return stopping_ || waiting_.size() > 0 || !discarded_.empty(); });
    --idle_;
    if (stopping_) return;
    auto discarded = std::exchange(discarded_, {});
    if (!discarded.empty()) {
      lock.unlock();
      discarded.clear();
      lock.lock();
    }
    if (waiting_.size() > 0) compute_next(lock);
  }
}

void MaskThreads::compute_next(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<NextMask> mask = *waiting_.pop();
  lock.unlock();
  const bool ended = mask->abandoned || mask->compute_slice();
  if (mask->abandoned) mask.reset();  // here, where time does not matter
  lock.lock();
  if (mask == nullptr) return;
  if (!ended) {
    const std::string& client = mask->client;
    waiting_.push(client, 0, std::move(mask));
    return;
  }
  mask->ready.store(true, std::memory_order_release);
  done_.notify_all();
}

AsyncMatcher::AsyncMatcher(Matcher matcher, std::string client, std::shared_ptr<MaskThreads> threads)
    : threads_(std::move(threads)), next_(std::make_shared<NextMask>(std::move(matcher), std::move(client))) {
  begin();
}

AsyncMatcher::~AsyncMatcher() {
  if (next_ == nullptr) return;
  next_->abandoned = true;
  threads_->discard(std::move(next_));
}

void AsyncMatcher::begin() {
  const bool quick = next_->compute_quickly();
  next_->ready.store(quick, std::memory_order_release);
  if (!quick) threads_->compute(next_);
}

Result<std::span<const uint64_t>> AsyncMatcher::allowed() const {
  RETURN_IF_ERROR(next_->status);
  return std::span<const uint64_t>(next_->allowed);
}

void AsyncMatcher::take(int32_t token) {
  next_->matcher.take(token);
  begin();
}

}  // namespace moesaic::grammar
