// Lower priority for threads that should not delay the computing ones.
#pragma once

namespace moesaic {

// For the calling thread. nice: 1 to 19; at 10 it gets a tenth of the time of an ordinary thread that wants
// the same core. Where the system refuses, nothing changes.
void lower_thread_priority(int nice);

}  // namespace moesaic
