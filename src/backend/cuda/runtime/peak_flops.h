// The rate of the tensor cores: the ceiling beside the figures of prompts.
#pragma once

#include <string_view>

namespace moesaic::cuda {

// FLOP/s by the data sheet: 16-bit values, sums in F32, no sparsity. 0: not known. name: the card's, since a
// GeForce does half of what others with its chip do. clock: the highest, in Hz; not used for 9.0, whose data
// sheet counts with a lower one.
double peak_flops(int major, int minor, std::string_view name, int multiprocessors, double clock);

}  // namespace moesaic::cuda
