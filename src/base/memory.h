// The machine's memory.
#pragma once

namespace moesaic {

// Bytes that can be taken without swapping, as Linux estimates them, and within the limits of this process:
// of its control groups and, under ulimit -v, of its address space. Infinite where nothing is known.
double available_host_memory();
// Bytes of the machine, or of the control group if that is less; infinite likewise.
double total_host_memory();

}  // namespace moesaic
