#include "api/stepper.h"

#include <exception>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

Status from_callback() {
  return invalid("a callback must not step, start, stop, close or wait for its own model");
}

}  // namespace

Stepper::~Stepper() {
  const bool destroyed_by_a_callback = !stop().ok();
  MOESAIC_CHECK(!destroyed_by_a_callback);
}

// Under the lock, so that who is about to wait has seen it or will be woken.
void Stepper::notify() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

Status Stepper::acquire(bool before_steps) {
  std::unique_lock lock(mutex_);
  if (busy_ && owner_ == std::this_thread::get_id()) return from_callback();
  int& waiting = before_steps ? urgent_ : steps_waiting_;
  ++waiting;
  changed_.wait(lock, [&] {
    if (busy_) return false;
    return before_steps ? !step_next_ || steps_waiting_ == 0 : step_next_ || urgent_ == 0;
  });
  --waiting;
  step_next_ = before_steps;
  busy_ = true;
  owner_ = std::this_thread::get_id();
  return {};
}

void Stepper::release(const Status& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure.ok() && failure_.ok()) failure_ = failure;
  busy_ = false;
  changed_.notify_all();
}

Status Stepper::exclusively(bool before_steps, const std::function<Status()>& body) {
  RETURN_IF_ERROR(acquire(before_steps));
  struct Release {
    Stepper& stepper;
    ~Release() { stepper.release({}); }
  };
  const Release release{*this};
  return body();
}

Status Stepper::step() {
  RETURN_IF_ERROR(process_.check());
  if (started()) return invalid("the model's own thread steps it: stop() it first");
  return exclusively(false, step_);
}

Status Stepper::between_steps(const std::function<Status()>& body) {
  RETURN_IF_ERROR(process_.check());
  return exclusively(true, body);
}

bool Stepper::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

Status Stepper::start() {
  RETURN_IF_ERROR(process_.check());
  {
    const std::lock_guard lock(mutex_);
    if (busy_ && owner_ == std::this_thread::get_id()) return from_callback();
  }
  const std::lock_guard control(control_);
  if (started()) return {};
  try {
    const std::lock_guard lock(mutex_);
    thread_ = std::thread([this] { work(); });
    started_ = true;
    stopping_ = false;
  } catch (const std::system_error& e) {
    return error(StatusCode::kOutOfMemory, "cannot start a thread: {}", e.what());
  }
  return {};
}

Status Stepper::stop() {
  RETURN_IF_ERROR(process_.check());
  {
    const std::lock_guard lock(mutex_);
    if (busy_ && owner_ == std::this_thread::get_id()) return from_callback();
  }
  const std::lock_guard control(control_);
  {
    const std::lock_guard lock(mutex_);
    if (!started_) return {};
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  const std::lock_guard lock(mutex_);
  started_ = false;
  changed_.notify_all();
  return {};
}

Status Stepper::wait() {
  RETURN_IF_ERROR(process_.check());
  std::unique_lock lock(mutex_);
  if (busy_ && owner_ == std::this_thread::get_id()) return from_callback();
  if (!started_) return invalid("no thread steps this model: start() one, or run()");
  changed_.wait(lock, [&] { return (idle_() && !busy_) || stopping_ || !started_; });
  if (!failure_.ok()) return std::exchange(failure_, Status());
  return idle_() ? Status() : error(StatusCode::kCancelled, "the model's thread was stopped");
}

Status Stepper::own_step() {
  try {
    return step_();
  } catch (const std::exception& e) {
    return error(StatusCode::kInternal, "{}", e.what());
  } catch (...) {
    return error(StatusCode::kInternal, "an exception of unknown type");
  }
}

void Stepper::work() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !idle_(); });
      if (stopping_) return;
    }
    if (!acquire(false).ok()) return;  // never: this thread is in no callback
    release(own_step());
  }
}

}  // namespace moesaic
