#define MOESAIC_ISA bf16
#include "backend/cpu/kernels_impl.h"
