#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace moesaic {

// On Linux each thread has its own niceness, against POSIX: setpriority(2).
void lower_thread_priority(int nice) { setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice); }

}  // namespace moesaic
