#include "grammar/mask_thread.h"

#include <exception>
#include <utility>

#include "base/error.h"
#include "base/thread_priority.h"

namespace moesaic::grammar {
namespace {

constexpr int kNice = 10;

}  // namespace

bool NextMask::compute(Effort effort) {
  if (token && !matcher.take(*token, effort)) return false;
  token.reset();
  const auto mask = matcher.allowed(effort);
  if (!mask) return false;
  status = mask->status();
  if (mask->ok()) allowed.assign(mask->value().begin(), mask->value().end());
  return true;
}

bool NextMask::try_compute() {
  const auto lock = matcher.try_lock();
  return lock && compute(Effort::kQuick);
}

void NextMask::compute() {
  try {
    const auto lock = matcher.lock();
    compute(Effort::kFull);
  } catch (const std::exception& e) {
    status = error(StatusCode::kOutOfMemory, "the answer's grammar: {}", e.what());
  }
}

MaskThread::~MaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MaskThread::compute(std::shared_ptr<NextMask> mask) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(mask));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  wake_.notify_one();
}

void MaskThread::wait_until(const NextMask& mask, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  done_.wait_until(lock, deadline, [&] { return mask.ready.load(std::memory_order_acquire); });
}

void MaskThread::run() {
  lower_thread_priority(kNice);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<NextMask> mask = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    if (!mask->abandoned) mask->compute();
    lock.lock();
    mask->ready.store(true, std::memory_order_release);
    done_.notify_all();
  }
}

AsyncMatcher::AsyncMatcher(Matcher matcher, std::shared_ptr<MaskThread> thread)
    : thread_(std::move(thread)), next_(std::make_shared<NextMask>(std::move(matcher))) {
  begin();
}

AsyncMatcher::~AsyncMatcher() {
  if (next_ != nullptr) next_->abandoned = true;
}

void AsyncMatcher::begin() {
  const bool quick = next_->try_compute();
  next_->ready.store(quick, std::memory_order_release);
  if (!quick) thread_->compute(next_);
}

Result<std::span<const uint64_t>> AsyncMatcher::allowed() const {
  RETURN_IF_ERROR(next_->status);
  return std::span<const uint64_t>(next_->allowed);
}

void AsyncMatcher::take(int32_t token) {
  next_->token = token;
  begin();
}

}  // namespace moesaic::grammar
