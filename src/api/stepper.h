// Steps a model by one thread at a time: the callers' or, after start(), a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/own_process.h"
#include "moesaic/status.h"

namespace moesaic {

class Stepper {
 public:
  // step: one step, from one thread at a time. idle: whether there is nothing to do, from any thread.
  Stepper(std::function<Status()> step, std::function<bool()> idle)
      : step_(std::move(step)), idle_(std::move(idle)) {}
  ~Stepper();  // aborts within a callback
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // Something may have come, or ended.
  void notify();
  // A caller's step. An error from a callback, or while the own thread runs.
  Status step();
  // Runs body between two steps, before further ones. An error from a callback.
  Status between_steps(const std::function<Status()>& body);
  Status start();
  Status stop();
  bool started() const;  // not in a forked process
  Status wait();

 private:
  // Runs body while no other thread does.
  Status exclusively(bool before_steps, const std::function<Status()>& body);
  Status acquire(bool before_steps);
  void release(const Status& failure);
  // A step whose exceptions are errors too.
  Status own_step();
  void work();

  OwnProcess process_;  // in a forked one everything fails: the mutex may be locked for ever
  std::function<Status()> step_;
  std::function<bool()> idle_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int steps_waiting_ = 0;
  bool step_next_ = false;  // before another call between steps, so that many of those hold no step up
  bool busy_ = false;
  std::thread::id owner_;  // while busy_
  int urgent_ = 0;         // threads that wait in between_steps()
  bool started_ = false, stopping_ = false;
  Status failure_;      // the first since wait() gave one
  std::mutex control_;  // start() and stop()
  std::thread thread_;
};

}  // namespace moesaic
