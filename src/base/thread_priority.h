// Threads that may wait give way to those that compute.
#pragma once

namespace moesaic {

// For the calling thread: other threads of the machine that want its core nearly always get it. Where the system
// refuses, nothing changes.
void lower_thread_priority();

}  // namespace moesaic
