// A caller's element type as the kernels of moe_rows.h and layer_rows.h name it.
#pragma once

#include "backend/cuda/kernels/common/moe_rows.h"
#include "backend/moe_operator.h"

namespace moesaic::cuda {

inline RowType row_type(ElementType type) {
  constexpr RowType kTypes[] = {RowType::kF32, RowType::kF16, RowType::kBF16};
  return kTypes[static_cast<int>(type)];
}

}  // namespace moesaic::cuda
