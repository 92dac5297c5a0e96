#define MOESAIC_ISA scalar
#include "backend/cpu/kernels_impl.h"
