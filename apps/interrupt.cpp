#include "interrupt.h"

namespace moesaic::app {
namespace {

volatile std::sig_atomic_t flag = 0;
struct sigaction before;

void on_interrupt(int) {
  flag = 1;
  sigaction(SIGINT, &before, nullptr);
}

}  // namespace

InterruptScope::InterruptScope() {
  flag = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before);
}

InterruptScope::~InterruptScope() { sigaction(SIGINT, &before, nullptr); }

bool InterruptScope::requested() const { return flag != 0; }

}  // namespace moesaic::app
