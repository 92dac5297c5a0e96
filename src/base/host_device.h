// MOESAIC_HOST_DEVICE marks a function that both the host and the kernels call.
#pragma once

#ifdef __CUDACC__
#define MOESAIC_HOST_DEVICE __host__ __device__
#else
#define MOESAIC_HOST_DEVICE
#endif
