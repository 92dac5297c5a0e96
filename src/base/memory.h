// The machine's memory.
#pragma once

namespace moesaic {

// Bytes that can be taken without swapping, as Linux estimates them; infinite where it does not say.
double available_host_memory();
double total_host_memory();  // infinite likewise

}  // namespace moesaic
