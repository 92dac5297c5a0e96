#define MOESAIC_ISA avxvnni_evex
#include "backend/cpu/kernels_impl.h"
