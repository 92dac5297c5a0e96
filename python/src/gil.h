// Python's lock, in threads that the interpreter may not wait for. Up to 3.13 it ends a daemon thread that
// takes the lock while the interpreter exits, by unwinding its stack (3.14 lets it sleep instead). C++ does
// not survive that: it unwinds through destructors and handlers, and the process aborts. Here such a thread
// sleeps until the process has ended.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace moesaic::python {

// take: what takes the lock.
template <typename Take>
auto take_lock(Take&& take) noexcept {
  try {
    return take();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();  // an unwinding that is caught must not go on, and this handler never ends
  }
}

// Python's lock is given back for as long as this lives.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    take_lock([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// Python's lock is held for as long as this lives.
class Locked {
 public:
  Locked() : state_(take_lock([] { return PyGILState_Ensure(); })) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace moesaic::python
