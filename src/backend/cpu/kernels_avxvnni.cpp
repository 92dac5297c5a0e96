#define MOESAIC_ISA avxvnni
#include "backend/cpu/kernels_impl.h"
