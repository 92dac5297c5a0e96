#define MOESAIC_ISA avx512vnni
#include "backend/cpu/kernels_impl.h"
