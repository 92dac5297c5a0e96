#define MOESAIC_ISA dotprod
#include "backend/cpu/kernels_impl.h"
