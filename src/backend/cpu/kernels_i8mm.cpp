#define MOESAIC_ISA i8mm
#include "backend/cpu/kernels_impl.h"
