// The machine's read bandwidth, measured: the ceiling beside every figure.
#pragma once

namespace moesaic::cpu {

// GB/s with the given number of threads (0: all), the best of a few passes over 256 MB. Takes about 50 ms.
double measure_read_bandwidth(int threads);

}  // namespace moesaic::cpu
